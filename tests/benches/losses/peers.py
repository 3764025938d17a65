"""The benchmark's rows by other libraries: PyTorch, torch.compile, Liger and quack.

    python3 peers.py CASES [--on-cpu]

CASES is what peers.rs writes. On standard output comes a JSON object a line: one for each library, with its version
or why it is absent, then one for each row, with the libraries' results, or for each case that failed as a whole. --on-cpu tries every call on a few numbers
on the CPU, for machines without a GPU; what it measures means nothing.

The method is the benchmark's: graphs of several calls between two events, in rounds through all libraries of a row,
on copies of the tensors that take turns; of a library that can compute a row in several ways the fastest counts. A
call that waits for the device fits into no graph: it is queued by the host, between two events too. Every way is
checked against float64 before it is timed.
"""
import collections
import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Callable

START = time.monotonic()
# Libraries also print to standard output. From here on, their output goes to standard error.
OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def say(**line):
    print(json.dumps(line, allow_nan=False), file=OUT, flush=True)


try:
    import torch
    import torch.nn.functional as F
except ImportError as why:
    say(library="PyTorch", absent=str(why))
    sys.exit(0)

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Allowed errors: of a loss relative to it, of a gradient relative to the largest of its row.
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
# Elements per step of a float64 reference.
CHUNK = 1 << 24
PLAN = json.loads(sys.argv[1])
ON_CPU = "--on-cpu" in sys.argv[2:]
DEVICE = "cpu" if ON_CPU else "cuda"


# ---- the libraries -------------------------------------------------------------------------


@dataclass
class Way:
    """A way to compute a row: `call(x, t)` gives the loss, or the loss and the gradient of x."""

    library: str
    name: str
    call: Callable
    # Tried only if there is time.
    optional: bool = False
    # Overwrites x with the gradient.
    overwrites: bool = False
    # A factor that its gradient lacks.
    gradient_scale: float = 1.0


def first_line(why):
    """An exception in one line."""
    text = str(why).strip() or "no message"
    return f"{type(why).__name__}: {text.splitlines()[0]}"


def libraries():
    """What can be imported: for each library its package, or nothing."""
    device = "CPU" if ON_CPU else torch.cuda.get_device_name()
    say(library="PyTorch", version=torch.__version__, device=device)
    say(library="torch.compile", version=f"{torch.__version__}, Triton {version_of('triton')}")
    found = {}
    for library, package, module in (
        ("Liger", "liger-kernel", "liger_kernel.transformers.functional"),
        ("quack", "quack-kernels", "quack.cross_entropy"),
    ):
        try:
            found[library] = importlib.import_module(module)
            say(library=library, version=version_of(package))
        # Not only ImportError: one of them looks for a GPU during its import.
        except Exception as why:
            say(library=library, absent=first_line(why))
    return found


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


# The factor of the entropy in the mean whose gradient the benchmark computes.
ENTROPY = 0.01


def policy(x, t):
    """The mean over the rows of -log p - ENTROPY H, of a class's log-probability and the row's entropy."""
    log_p = F.log_softmax(x, 1, dtype=torch.float32)
    entropy = -(log_p.exp() * log_p).sum(1)
    return -(log_p.gather(1, t[:, None]).squeeze(1) + ENTROPY * entropy).mean()


def pytorch(case):
    if case["loss"] == "mse":
        return lambda x, t: F.mse_loss(x, t)
    if case["loss"] == "bce":
        return lambda x, t: F.binary_cross_entropy_with_logits(x, t)
    if case["loss"] == "cross_entropy":
        return lambda x, t: F.cross_entropy(x, t)
    if case["loss"] == "log_prob":
        return policy
    if case["log_input"]:
        return lambda x, t: F.kl_div(x, t, reduction="batchmean")
    return lambda p, t: F.kl_div(p.log(), t, reduction="batchmean")


def with_gradient(loss):
    """The loss and the gradient of x by autograd, added to nothing."""
    ones = {}

    def call(x, t):
        value = loss(x, t)
        if value.dtype not in ones:
            ones[value.dtype] = torch.ones_like(value)
        gradient = torch.autograd.grad(value, x, ones[value.dtype])[0]
        # Detached from its history, which would keep the stream of this call alive.
        return value.detach(), gradient

    return call


def in_one_graph(loss):
    """As `with_gradient`, for torch.compile to fuse the passes."""

    def call(x, t):
        gradient, value = torch.func.grad_and_value(loss)(x, t)
        return value, gradient

    return call


def ways(case, backward, found):
    """All ways to compute a row."""
    loss = pytorch(case)
    both = with_gradient if backward else lambda loss: loss
    names = {
        "mse": "F.mse_loss",
        "kl_div": "F.kl_div",
        "bce": "F.binary_cross_entropy_with_logits",
        "cross_entropy": "F.cross_entropy",
    }
    yield Way("PyTorch", names.get(case["loss"], "F.log_softmax and gather"), both(loss))
    for mode in "default", "max-autotune-no-cudagraphs":
        optional = mode != "default"
        compiled = torch.compile(loss, dynamic=False, mode=mode)
        yield Way("torch.compile", mode, both(compiled), optional)
        if backward:
            compiled = torch.compile(in_one_graph(loss), dynamic=False, mode=mode)
            yield Way("torch.compile", f"{mode}, both passes in one graph", compiled, optional)
    if "Liger" in found:
        liger = found["Liger"]
        if case["loss"] == "kl_div":
            of = (lambda x: x) if case["log_input"] else torch.log
            divergence = lambda x, t: liger.liger_kl_div(of(x), t, reduction="batchmean")
            yield Way("Liger", "liger_kl_div", both(divergence))
        elif case["loss"] == "cross_entropy":
            entropy = lambda x, t: liger.liger_cross_entropy(x, t)
            yield Way("Liger", "liger_cross_entropy", both(entropy), overwrites=backward)
    if "quack" in found and case["loss"] == "cross_entropy":
        quack = found["quack"]
        yield Way("quack", "cross_entropy", both(lambda x, t: quack.cross_entropy(x, t)))
        if backward:
            rows = case["rows"]
            # A materialized gradient per row: the gradient that a mean passes back has stride 0.
            even = torch.full((rows,), 1 / rows, device=DEVICE)

            def by_row(x, t):
                terms = quack.cross_entropy(x, t, reduction="none")
                return terms.detach().mean(), torch.autograd.grad(terms, x, even)[0]

            def at_once(x, t):
                terms, gradient = quack.cross_entropy_fwd(x.detach(), t, return_dx=True)
                return terms.mean(), gradient

            yield Way("quack", "cross_entropy by row", by_row)
            name = "cross_entropy_fwd with the gradient, not divided by the rows"
            yield Way("quack", name, at_once, gradient_scale=1 / rows)
        else:
            terms = lambda x, t: quack.cross_entropy_fwd(x, t).mean()
            yield Way("quack", "cross_entropy_fwd", terms)


# ---- inputs, and expected results ----------------------------------------------------------


def inputs(case):
    """Numbers like the benchmark's own."""
    rows, cols, dtype = case["rows"], case["cols"], DTYPES[case["dtype"]]
    generator = torch.Generator(DEVICE).manual_seed(1)

    def uniform(low, high):
        return torch.empty(rows, cols, device=DEVICE).uniform_(low, high, generator=generator)

    if case["loss"] == "mse":
        return uniform(-1, 1).to(dtype), uniform(-1, 1).to(dtype)
    if case["loss"] == "bce":
        return uniform(-1, 1).to(dtype), uniform(0.0005, 0.9995).to(dtype)
    if case["loss"] == "kl_div":
        x = uniform(0.0005, 0.9995)
        return (x.log() if case["log_input"] else x).to(dtype), uniform(0.0005, 0.9995).to(dtype)
    classes = torch.randint(cols, (rows,), device=DEVICE, generator=generator)
    return uniform(-4, 4).to(dtype), classes


def reference(case, x, t):
    """The sum of the terms of some rows, and the gradient of the whole loss by them, in float64."""
    rows, cols = case["rows"], case["cols"]
    x = x.double()
    if case["loss"] == "mse":
        difference = x - t.double()
        return difference.square().sum(), 2 * difference / (rows * cols)
    if case["loss"] == "bce":
        t = t.double()
        terms = F.binary_cross_entropy_with_logits(x, t, reduction="none")
        return terms.sum(), (x.sigmoid() - t) / (rows * cols)
    if case["loss"] == "kl_div":
        t = t.double()
        log_p, by_x = (x, -t) if case["log_input"] else (x.log(), -t / x)
        return (t * (t.log() - log_p)).sum(), by_x / rows
    log_p = x.log_softmax(1)
    terms = -log_p.gather(1, t[:, None])
    if case["loss"] == "log_prob":
        p = log_p.exp()
        entropy = -(p * log_p).sum(1, keepdim=True)
        gradient = p + ENTROPY * p * (log_p + entropy)
        gradient.scatter_add_(1, t[:, None], -torch.ones_like(terms))
        return (terms - ENTROPY * entropy).sum(), gradient / rows
    gradient = log_p.exp_().scatter_add_(1, t[:, None], -torch.ones_like(terms))
    return terms.sum(), gradient / rows


def check(case, way, x, t, backward):
    """The errors of a way's loss and gradient; ValueError where they are too large."""
    own = x.detach().clone().requires_grad_(x.requires_grad) if way.overwrites else x
    result = way.call(own, t)
    value, gradient = result if backward else (result, None)
    step = max(1, CHUNK // case["cols"])
    expected, gradient_errors = 0.0, []
    for start in range(0, case["rows"], step):
        part = slice(start, start + step)
        total, by_x = reference(case, x.detach()[part], t[part])
        expected += total.item()
        if backward:
            off = (gradient[part].double() * way.gradient_scale - by_x).abs().amax(1)
            gradient_errors.append((off / by_x.abs().amax(1)).max())
    expected /= case["rows"] * (case["cols"] if case["loss"] in ("mse", "bce") else 1)
    errors = {"loss_error": abs(value.item() / expected - 1)}
    if backward:
        errors["gradient_error"] = torch.stack(gradient_errors).max().item()
    for what, error in errors.items():
        # Written so that NaN fails.
        if not error <= ALLOWED[x.dtype]:
            raise ValueError(f"wrong: its {what} is {error:.1e}")
    return errors


# ---- time ----------------------------------------------------------------------------------


class HostEvent:
    """Stands for an event where there is no device."""

    def record(self):
        self.time = time.perf_counter()

    def elapsed_time(self, end):
        return (end.time - self.time) * 1e3


def event():
    return HostEvent() if ON_CPU else torch.cuda.Event(enable_timing=True)


def synchronise():
    if not ON_CPU:
        torch.cuda.synchronize()


def waits(call):
    """Whether a call waits for the device. Asked before a capture, which such a call would break off in a state that
    the allocator does not recover from."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
        return False
    except RuntimeError as why:
        if "synchroniz" in str(why):
            return True
        raise
    finally:
        torch.cuda.set_sync_debug_mode("default")


def captured(loop, pool):
    """The replay of a graph of `loop`; None where it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="relaxed"):
            loop()
    except RuntimeError as why:
        print(f"not captured: {first_line(why)}", file=sys.stderr)
        return None
    return graph.replay


def rounds(runs, samples):
    """The median time of each run in milliseconds, of `samples` rounds through all."""
    for run in runs:
        run()
    synchronise()
    pairs = [[(event(), event()) for _ in runs] for _ in range(samples)]
    for pair in pairs:
        for (start, end), run in zip(pair, runs):
            start.record()
            run()
            end.record()
    synchronise()
    return [statistics.median(start.elapsed_time(end) for start, end in of) for of in zip(*pairs)]


def rounds_of_host(runs, samples):
    """As `rounds`, on the host's clock and until the device is done."""
    times = [[] for _ in runs]
    for _ in range(samples):
        for run, of in zip(runs, times):
            synchronise()
            start = time.perf_counter()
            run()
            synchronise()
            of.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(of) for of in times]


# ---- the rows ------------------------------------------------------------------------------


@dataclass
class Timed:
    """A way that has been checked, with its calls as `loop` and, where there is one, the graph of them."""

    way: Way
    loop: Callable
    replay: Callable | None
    errors: dict


def prepare(case, way, data, calls, backward, pool):
    """Checks a way and captures its calls."""
    # Separate tensors, because autograd records on them which stream has used them.
    fresh = (lambda x: x.clone()) if way.overwrites else (lambda x: x.detach())
    data = [(fresh(x).requires_grad_(backward), t) for x, t in data]
    errors = check(case, way, *data[0], backward)

    def loop(calls=calls):
        # As many results stay alive as there are copies, so that gradients take turns too.
        kept = collections.deque(maxlen=len(data))
        for index in range(calls):
            kept.append(way.call(*data[index % len(data)]))

    fits = not ON_CPU and not waits(lambda: loop(1))
    replay = captured(loop, pool) if fits else None
    if replay is None:
        loop()
    return Timed(way, loop, replay, errors)


def attempt(case, backward, found, data, calls, late):
    """All ways of a row that work, and the messages of those that do not."""
    gc.collect()
    if not ON_CPU:
        # The allocator may fail after a capture was interrupted.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
    torch._dynamo.reset()
    pool = None if ON_CPU else torch.cuda.graph_pool_handle()
    ready, failed = [], []
    for way in ways(case, backward, found):
        if way.optional and late():
            continue
        try:
            ready.append(prepare(case, way, data, calls, backward, pool))
        except Exception as why:
            failed.append((way, first_line(why)))
    return ready, failed


def report(row, measured, failed):
    """Says the results of a row, of each library's fastest way first."""
    results = {}
    for way, result in sorted(measured, key=lambda each: each[1]["ms"]):
        ours = results.setdefault(way.library, {"way": way.name} | result | {"others": []})
        if ours["way"] != way.name:
            ours["others"].append({"way": way.name} | result)
    for way, why in failed:
        result = results.setdefault(way.library, {"error": why, "others": []})
        result["others"].append({"way": way.name, "error": why})
    say(row=row, results=results)
    shown = {name: result.get("ms", "error") for name, result in results.items()}
    print(f"{time.monotonic() - START:.0f} s: {row}: {shown}", file=sys.stderr)


def large(case, found, late):
    x, t = inputs(case)
    data = [(x, t)] + [(x.clone(), t.clone()) for _ in range(case["copies"] - 1)]
    calls = case["calls"]

    # A function, so that the graphs of a row and their memory are freed before the next row.
    def row(name, backward):
        ready, failed = attempt(case, backward, found, data, calls, late)
        times = rounds([each.replay or each.loop for each in ready], PLAN["samples"])
        measured = [
            (each.way, {"ms": ms / calls, "timed": "graph" if each.replay else "queue"} | each.errors)
            for each, ms in zip(ready, times)
        ]
        report(f"{case['name']}, {name}", measured, failed)

    row("forward", False)
    row("forward+backward", True)


def small(case, found, late):
    calls, queued = (2, 3) if ON_CPU else (200, 1000)
    ready, failed = attempt(case, False, found, [inputs(case)], calls, late)
    fit = [each for each in ready if each.replay or ON_CPU]
    times = rounds([each.replay or each.loop for each in fit], PLAN["samples"])
    unfit = [(each.way, "no graph can hold its call") for each in ready if each not in fit]
    measured = [
        (each.way, {"ms": ms / calls, "timed": "graph"} | each.errors)
        for each, ms in zip(fit, times)
    ]
    report(f"{case['name']}, forward, in a graph", measured, failed + unfit)
    loops = [lambda each=each: each.loop(queued) for each in ready]
    measured = [
        (each.way, {"ms": ms / queued, "timed": "host"} | each.errors)
        for each, ms in zip(ready, rounds_of_host(loops, PLAN["samples"]))
    ]
    report(f"{case['name']}, forward, queued one by one", measured, failed)


def main():
    if not ON_CPU and not torch.cuda.is_available():
        say(library="PyTorch", absent="torch sees no CUDA device")
        return
    found = libraries()
    cases = PLAN["cases"]
    for index, case in enumerate(cases):
        if ON_CPU:
            case |= {"rows": min(case["rows"], 6), "cols": min(case["cols"], 40)}

        def late(done=index / len(cases)):
            """Whether more than this case's share of the time is spent, with a start for the first."""
            return time.monotonic() - START > PLAN["seconds"] * (0.2 + 0.8 * done)

        try:
            (small if case["small"] else large)(case, found, late)
        except Exception as why:
            say(failed=case["name"], why=first_line(why))


# The script that may follow this one measures the shapes of --landscape.
if "cases" in PLAN:
    main()
