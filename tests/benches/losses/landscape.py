# Measures the shapes of --landscape with the same libraries. This script follows peers.py and uses
# its names: peers.rs passes both to Python. PLAN["landscape"] is a list of cases, each with name,
# loss, dtype, pass, rows, cols, stride, extras, copies and calls. By hand: cat peers.py
# landscape.py | python3 - PLAN [--on-cpu]

DTYPES |= {"f16": torch.float16, "f64": torch.float64}
ALLOWED |= {torch.float16: 5e-3, torch.float64: 1e-7}
SMOOTHING, Z_LOSS = 0.1, 1e-4
# The number of rows whose gradients are compared with float64.
COMPARED = 64


def terms(case, weight=None):
    """The loss of x and t by PyTorch's functions, as a function that also takes its reduction:
    "none" gives a value for each row, anything else what the shape's name says."""
    extras = case["extras"]
    if case["loss"] == "mse":
        def loss(x, t, reduction="whole"):
            if reduction == "none" or "rows" in extras:
                return F.mse_loss(x, t, reduction="none").mean(1)
            return F.mse_loss(x, t)
    elif case["loss"] == "kl":
        def loss(x, t, reduction="whole"):
            x = x if "log" in extras else x.log()
            if reduction == "none" or "rows" in extras:
                return F.kl_div(x, t, reduction="none").sum(1)
            return F.kl_div(x, t, reduction="mean" if "mean" in extras else "batchmean")
    else:
        smoothing = SMOOTHING if "smoothing" in extras else 0.0

        def loss(x, t, reduction="mean"):
            own = weight if weight is None else weight.to(x.dtype)
            kind = "none" if reduction == "none" else "mean"
            value = F.cross_entropy(x, t, own, label_smoothing=smoothing, reduction=kind)
            if "z-loss" in extras:
                z = Z_LOSS * x.float().logsumexp(1).square() if x.dtype.itemsize < 4 else (
                    Z_LOSS * x.logsumexp(1).square())
                value = value + (z if kind == "none" else z.mean())
            return value
    return loss


def landscape_ways(case, weight, found, late):
    """The ways to compute a case, each a function of x and t that gives the loss."""
    extras, matrix = set(case["extras"]), "probabilities" in case["extras"]
    loss = terms(case, weight)
    whole = lambda x, t: loss(x, t)
    yield Way("PyTorch", "eager", whole)
    if not late():
        yield Way("torch.compile", "default", torch.compile(whole, dynamic=False))
    # A backward pass of Liger returns the gradient that its forward pass has computed, so there is
    # nothing to compare.
    if "Liger" in found and case["pass"] != "backward" and not matrix:
        liger = found["Liger"]
        if case["loss"] == "ce":
            options = {}
            if "smoothing" in extras:
                options["label_smoothing"] = SMOOTHING
            if "weights" in extras:
                options["weight"] = weight
            if "z-loss" in extras:
                options["lse_square_scale"] = Z_LOSS
            entropy = lambda x, t: liger.liger_cross_entropy(x, t, **options)
            overwrites = case["pass"] != "forward"
            yield Way("Liger", "liger_cross_entropy", entropy, overwrites=overwrites)
        elif case["loss"] == "kl" and not extras & {"rows", "mean"}:
            of = (lambda x: x) if "log" in extras else torch.log
            divergence = lambda x, t: liger.liger_kl_div(of(x), t, reduction="batchmean")
            yield Way("Liger", "liger_kl_div", divergence)
    if "quack" in found and case["loss"] == "ce" and not extras - {"gaps", "offset"}:
        quack = found["quack"]
        yield Way("quack", "cross_entropy", lambda x, t: quack.cross_entropy(x, t))


def placed(values, case, misaligned):
    """A matrix of these values with the case's gaps between rows, and an element off its alignment
    if it is to be."""
    rows, cols, stride = case["rows"], case["cols"], case["stride"]
    if stride == cols and not misaligned:
        return values
    memory = torch.empty(rows * stride + 1, dtype=values.dtype, device=DEVICE)
    return memory.as_strided((rows, cols), (stride, 1), int(misaligned)).copy_(values)


def landscape_inputs(case):
    """Numbers like the benchmark's own, and the class weights."""
    rows, cols, dtype = case["rows"], case["cols"], DTYPES[case["dtype"]]
    offset = "offset" in case["extras"]
    generator = torch.Generator(DEVICE).manual_seed(1)

    def uniform(low, high, *shape):
        # In its own type: a copy in another could be larger than everything that is measured.
        shape = shape or (rows, cols)
        values = torch.empty(*shape, dtype=dtype, device=DEVICE)
        return values.uniform_(low, high, generator=generator)

    weight = None
    if case["loss"] == "ce":
        x = uniform(-4, 4)
        if "probabilities" in case["extras"]:
            t = uniform(0.001, 1.999).div_(cols)
        else:
            t = torch.randint(cols, (rows,), device=DEVICE, generator=generator)
            if "ignored" in case["extras"]:
                t[2::3] = -100
        if "weights" in case["extras"]:
            weight = uniform(0.5, 1.5, cols)
        x = placed(x, case, offset)
        return x, placed(t, case, False) if t.dim() == 2 else t, weight
    if case["loss"] == "kl":
        x = uniform(0.0005, 0.9995)
        x, t = (x.log_() if "log" in case["extras"] else x), uniform(0.0005, 0.9995)
    else:
        x, t = uniform(-1, 1), uniform(-1, 1)
    return placed(x, case, False), placed(t, case, offset), None


def copied(x):
    """A copy in the same place relative to alignment and with the same gaps."""
    memory = torch.empty(x.untyped_storage().nbytes() // x.itemsize, dtype=x.dtype, device=DEVICE)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x.detach())


def landscape_expected(case, x, t, weight):
    """The loss in float64 (of a reduction to rows the sum of all), its size, and the gradient of
    the first rows by it."""
    loss, rows = terms(case, None if weight is None else weight.double()), case["rows"]
    step = max(1, CHUNK // case["cols"])
    total = size = 0.0
    for start in range(0, rows, step):
        part = slice(start, start + step)
        values = loss(x[part].double(), t[part].double() if t.is_floating_point() else t[part],
                      "none")
        total += values.sum().item()
        size += values.abs().sum().item()
    divisor = rows
    if "rows" in case["extras"]:
        divisor = 1
    elif weight is not None and not t.is_floating_point():
        divisor = weight.double()[t].sum().item()
    elif "mean" in case["extras"]:
        divisor = rows * case["cols"]
    some = x[:COMPARED].double().requires_grad_()
    of = t[:COMPARED]
    values = loss(some, of.double() if of.is_floating_point() else of, "none")
    gradient = torch.autograd.grad(values.sum() / divisor, some)[0]
    return total / divisor, size / divisor, gradient


def landscape_check(case, expected, value, gradient):
    """The errors of a result; ValueError where they are too large."""
    errors, (loss, size, by_x) = {}, expected
    dtype = DTYPES[case["dtype"]]
    if value is not None:
        # The sum of the rows' values, each of them rounded, is near the sum of the losses.
        errors["loss_error"] = abs(value.double().sum().item() - loss) / max(size, 1e-300)
    if gradient is not None:
        off = (gradient[:COMPARED].double() - by_x).abs().amax()
        # Gradients below the range of the type are no error.
        least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        errors["gradient_error"] = (off / (by_x.abs().amax() + 100 * least)).item()
    for what, error in errors.items():
        # Written so that NaN fails.
        if not error <= ALLOWED[dtype]:
            raise ValueError(f"wrong: its {what} is {error:.1e}")
    return errors


def landscape_prepare(case, way, data, expected, side, pool):
    """Checks a way and captures its calls. All is queued on one stream: autograd runs a backward
    pass on that of the forward pass."""
    which, calls = case["pass"], case["calls"]
    fresh = copied if way.overwrites else (lambda x: x.detach())
    with contextlib.nullcontext() if ON_CPU else torch.cuda.stream(side):
        data = [(fresh(x).requires_grad_(which != "forward"), t) for x, t in data]
        if which == "backward":
            ahead = [(way.call(x, t), x) for x, t in data]
            ones = torch.ones_like(ahead[0][0])

            def call(index):
                value, x = ahead[index]
                return None, torch.autograd.grad(value, x, ones, retain_graph=True)[0]
        elif which == "forward":
            def call(index):
                return way.call(*data[index]).detach(), None
        else:
            ones = None

            def call(index):
                nonlocal ones
                x, t = data[index]
                value = way.call(x, t)
                if ones is None:
                    ones = torch.ones_like(value)
                return value.detach(), torch.autograd.grad(value, x, ones)[0]

        value, gradient = call(0)
        errors = landscape_check(case, expected, value, gradient)
        del value, gradient

        def loop(calls=calls):
            # As many results stay alive as there are copies, so that gradients take turns too.
            kept = collections.deque(maxlen=len(data))
            for index in range(calls):
                kept.append(call(index % len(data)))

        replay = None
        if not ON_CPU:
            synchronise()
            # A call that waits for the device cannot be in a graph: it is queued between two events
            # instead.
            fits = not waits(lambda: loop(1))
            synchronise()
            if fits:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="relaxed"):
                    loop()
                replay = graph.replay
    return Timed(way, loop, replay, errors)


def release():
    """Gives memory back that the last case has used."""
    gc.collect()
    torch._dynamo.reset()
    if not ON_CPU:
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def landscape_case(case, found, late):
    """Measures a case one way after the other, so that each has the memory for itself."""
    x, t, weight = landscape_inputs(case)
    expected = landscape_expected(case, x, t, weight)
    data = [(x, t)] + [(copied(x), copied(t)) for _ in range(case["copies"] - 1)]
    measured, failed = [], []
    for way in landscape_ways(case, weight, found, late):
        try:
            side = None if ON_CPU else torch.cuda.Stream()
            pool = None if ON_CPU else torch.cuda.graph_pool_handle()
            ready = landscape_prepare(case, way, data, expected, side, pool)
            ms = rounds([ready.replay or ready.loop], PLAN["samples"])[0]
            timed = "graph" if ready.replay else "queue"
            measured.append((way, {"ms": ms / case["calls"], "timed": timed} | ready.errors))
        except Exception as why:
            failed.append((way, first_line(why)))
        ready = None
        release()
    report(case["name"], measured, failed)


def landscape():
    if not ON_CPU and not torch.cuda.is_available():
        say(library="PyTorch", absent="torch sees no CUDA device")
        return
    # A backward pass is repeated, so the memory of what the forward pass saved must not be reused
    # for its result.
    with contextlib.suppress(ImportError, AttributeError):
        # An alias: an import of `torch` here would make `torch` a local name of this function.
        import torch._functorch.config as functorch
        functorch.donated_buffer = False
    found = libraries()
    for index, case in enumerate(PLAN["landscape"]):
        if ON_CPU:
            cols = min(case["cols"], 40)
            gap = min(case["stride"] - case["cols"], 3)
            case |= {"rows": min(case["rows"], 6), "cols": cols, "stride": cols + gap}
            case |= {"calls": 2, "copies": 2}

        def late():
            """Whether the time that the other libraries should take is spent."""
            return time.monotonic() - START > PLAN["seconds"]

        if late():
            left = len(PLAN["landscape"]) - index
            say(failed=f"{left} shapes", why="no time was left for them")
            return
        try:
            landscape_case(case, found, late)
        except Exception as why:
            say(failed=case["name"], why=first_line(why))
        release()


if "landscape" in PLAN:
    landscape()
