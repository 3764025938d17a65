#!/usr/bin/env python3
"""How far off we are, and how far PyTorch is, on the cases of pytorch.jsonl.

    FUSED_LOSS_RESULTS=RESULTS.jsonl cargo test --release -p fused-loss-tests --test golden
    python accuracy.py RESULTS.jsonl [cpu | cuda]

PyTorch computes every case in the case's own dtype, on the GPU where it sees one. Both are held against the formulas
of docs/semantics.md in extended precision (64 bits behind the point): the float64 numbers of pytorch.jsonl have
PyTorch's own roundings in them, so that they cannot judge f64. README.md beside this file says in which units. The
exit status is 1 where our largest error is above PyTorch's.
"""
import collections
import json
import os
import sys
import warnings

import numpy as np
import torch

import make

HERE = os.path.dirname(os.path.abspath(__file__))
LONG = np.longdouble
# For each dtype: digits behind the point, the smallest normal exponent, the largest number.
TYPES = {
    "f64": (52, -1022, np.finfo(np.float64).max),
    "f32": (23, -126, np.finfo(np.float32).max),
    "f16": (10, -14, 65504.0),
    "bf16": (7, -126, 2.0**128 - 2.0**120),
}
HALVES = ("f16", "bf16")
# Cases listed for each kind of error.
WORST = 3


# ---- what is exact -------------------------------------------------------------------------


def array(values, shape):
    """Numbers of the data: nan and infinities are strings there."""
    return np.array([float(v) for v in values], dtype=LONG).reshape(shape)


def masked(factor, value):
    """A product that is 0 where its factor is, whatever the value."""
    return np.where(factor == 0, LONG(0), factor * value)


def elementwise(case, x, t):
    """Unreduced: the terms, and their derivatives by input and target."""
    options, d = case["options"], x - t
    if case["loss"] == "mse":
        return d * d, 2 * d, -2 * d
    if case["loss"] == "huber":
        delta = LONG(options["delta"])
        by_x = np.clip(d, -delta, delta)
        terms = np.where(abs(d) <= delta, d * d / 2, delta * (abs(d) - delta / 2))
        return terms, by_x, -by_x
    if case["loss"] == "smooth_l1":
        beta = LONG(options["beta"])
        inside = abs(d) < beta
        by_x = np.where(inside, d / np.where(inside, beta, 1), np.sign(d))
        return np.where(inside, d * by_x / 2, abs(d) - beta / 2), by_x, -by_x
    if case["loss"] == "bce":
        one = {"shape": [], "values": [1.0]}
        w, p = (array(weight["values"], weight["shape"]) for weight in (options.get(k, one) for k in ("weight", "pos_weight")))
        positive, q, e = x > 0, 1 + (p - 1) * t, np.exp(-abs(x))
        terms = np.where(positive, (1 - t) * x, -p * t * x) + q * np.log1p(e)
        tail = q * e / (1 + e)
        by_x = np.where(positive, (1 - t) - tail, tail - p * t)
        return w * terms, w * by_x, w * (np.where(positive, -x, -p * x) + (p - 1) * np.log1p(e))
    log_x = np.log(x) if options["input"] == "prob" else x
    q, log_t = (np.exp(t), t) if options["log_target"] else (t, np.log(t))
    difference = log_t - log_x
    if options["input"] == "prob" and not options["log_target"]:
        # Nearly equal numbers, without the cancellation.
        difference = np.where(abs(d) < x / 2, np.log1p((t - x) / x), difference)
    by_x = -q / x if options["input"] == "prob" else -q
    by_t = q * (difference + 1) if options["log_target"] else difference + 1
    return masked(q, difference), by_x, by_t


def cross_entropy(case, x, t):
    """By row: the terms, their derivatives, and what each row's share of the loss is divided by."""
    options, (rows, cols) = case["options"], x.shape
    weight = array(options.get("weight", [1.0] * cols), (1, cols))
    eps, z_loss = LONG(options.get("label_smoothing", 0)), LONG(options.get("z_loss", 0))
    probabilities = options["target_type"] == "prob"
    if probabilities:
        kept, share = np.ones((rows, 1), bool), LONG(rows)
    else:
        classes = np.array(case["target"], dtype=np.int64).reshape(rows, 1)
        kept = classes != options.get("ignore_index", -100)
        t = (classes == np.arange(cols)) * LONG(1)
        share = (masked(t, weight) * kept).sum()
    q = weight * ((1 - eps) * t + eps / cols)
    top = x.argmax(1)[:, None]
    at_top = np.arange(cols) == top
    shifted = x - x.max(1, keepdims=True)
    # What is beside the largest, apart from its 1: a confident row would lose it.
    others = np.where(at_top, 0, np.exp(shifted)).sum(1, keepdims=True)
    log_sum = np.log1p(others)
    log_p, p, all_q = shifted - log_sum, np.exp(shifted) / (1 + others), q.sum(1, keepdims=True)
    other_q = np.where(at_top, 0, q).sum(1, keepdims=True)
    by_x = np.where(at_top, other_q - all_q * (others / (1 + others)), p * all_q - q)
    log_sum_exp = x.max(1, keepdims=True) + log_sum
    z, z_by_x = z_loss * log_sum_exp**2, 2 * z_loss * log_sum_exp * p
    terms, by_t = -masked(q, log_p).sum(1, keepdims=True), -(1 - eps) * weight * log_p
    if case["reduction"] != "mean":
        share = count = LONG(1)
    else:
        count = LONG(kept.sum())
    zero = LONG(0)
    terms = np.where(kept, terms / share + (z / count if z_loss else 0), zero)
    by_x = np.where(kept, by_x / share + (z_by_x / count if z_loss else 0), zero)
    return terms, by_x, by_t / share if probabilities else None


def exact(case):
    """(loss, sum of its terms' magnitudes, gradient of the input, gradient of the target or None)."""
    rows, cols = case["shape"]
    x = array(case["input"], (rows, cols))
    is_class = case["options"].get("target_type", "prob") != "prob"
    t = None if is_class else array(case["target"], (rows, cols))
    reduction = case["reduction"]
    if case["loss"] == "cross_entropy":
        terms, by_x, by_t = cross_entropy(case, x, t)
    else:
        terms, by_x, by_t = elementwise(case, x, t)
        divisor = {"mean": rows * cols, "row_mean": cols, "batchmean": rows}.get(reduction, 1)
        terms, by_x, by_t = terms / LONG(divisor), by_x / LONG(divisor), by_t / LONG(divisor)
    reduce = {
        "none": lambda v: v,
        "row_sum": lambda v: v.sum(1, keepdims=True),
        "row_mean": lambda v: v.sum(1, keepdims=True),
    }.get(reduction, lambda v: v.sum(keepdims=True))
    loss, magnitude = reduce(terms), reduce(abs(terms))
    upstream = array(np.ravel(1.0 if case["upstream"] is None else case["upstream"]), -1)
    upstream = upstream.reshape(loss.shape) if upstream.size == loss.size else upstream
    by_t = None if by_t is None else by_t * upstream
    return loss, magnitude, by_x * upstream, by_t


def agree(case, what, found, scale):
    """Holds what is exact here against the data, which is so to float64: two formulas that are written twice."""
    expected = array(np.ravel(case["expect"][what]), found.shape)
    finite = np.isfinite(expected)
    off = abs(found - expected)[finite]
    allowed = (1e-12 * scale + 1e-9 * abs(expected))[finite] + LONG(1e-300)
    if not (off <= allowed).all():
        sys.exit(f"{case['name']}: {what} is {found[finite]}, but pytorch.jsonl has {expected[finite]}")
    return np.where(finite, found, expected)


# ---- errors --------------------------------------------------------------------------------


def unit(value, dtype):
    """One unit in the last place."""
    digits, least, _ = TYPES[dtype]
    # frexp gives a number from 0.5 to 1.
    exponent = np.where(value == 0, least, np.frexp(value)[1] - 1)
    return np.ldexp(LONG(1), np.maximum(exponent, least) - digits)


class Errors:
    """The largest errors of each case, by kind: (loss, dtype, quantity, unit)."""

    def __init__(self):
        self.largest = collections.defaultdict(lambda: {"ours": {}, "PyTorch's": {}})
        self.strange = collections.Counter()
        self.broken = []

    def add(self, whose, case, call, quantity, found, reference, scale, dtype):
        """Adds the error of each number that can have one: that is finite in its type."""
        counts = np.isfinite(reference) & (abs(reference) <= TYPES[dtype][2])
        found = np.broadcast_to(found, reference.shape)
        strange = counts & ~np.isfinite(found)
        if strange.any():
            self.strange[whose] += int(strange.sum())
            if whose == "ours":
                self.broken.append(f"{case['name']}; {call}: {quantity} is not finite")
        counts &= ~strange
        if not counts.any():
            return
        off = abs(found - reference)
        tiny = np.ldexp(LONG(1), TYPES[dtype][1])
        units = {"": np.maximum(scale, tiny) + 0 * reference}
        # Rounded to the type of the data, where a float64 loss of half types is not.
        if case["dtype"] in HALVES and dtype in HALVES:
            units = {"": units[""], "ulp": unit(reference, dtype)}
        for name, one in units.items():
            worst = np.where(counts, off / one, 0)
            at = int(worst.argmax())
            key = case["loss"], case["dtype"], quantity, name
            error = float(worst.flat[at]), f"{case['name']}; {call}, element {at}"
            of_kind = self.largest[key][whose]
            of_kind[case["name"]] = max(error, of_kind.get(case["name"], error))


def compare(errors, whose, case, call, results, reference):
    """Adds the errors of a call's results, of which some may be missing."""
    loss, magnitude, by_x, by_t = reference
    by_element = case["loss"] != "cross_entropy" and case["reduction"] == "none"
    wide = "f64" if case["dtype"] == "f64" else "f32"
    found = results.get("loss")
    if found is not None:
        quantity = "loss, by element" if by_element else "loss"
        scale = np.maximum(abs(loss), magnitude)
        found = array(np.ravel(found), loss.shape)
        dtype = case["dtype"] if by_element else wide
        errors.add(whose, case, call, quantity, found, loss, scale, dtype)
    for field, gradient in ("grad_input", by_x), ("grad_target", by_t):
        found = results.get(field)
        if found is not None and gradient is not None:
            finite = np.where(np.isfinite(gradient), abs(gradient), 0)
            scale = finite.max(1, keepdims=True, initial=0)
            found = array(found, gradient.shape)
            errors.add(whose, case, call, "gradient", found, gradient, scale, case["dtype"])


def of_pytorch(case, device):
    """PyTorch's loss and gradients of a case, in its dtype."""
    dtype = make.DTYPES[case["dtype"]]

    def tensor(values):
        values = torch.tensor([float(v) for v in values], dtype=torch.float64)
        return values.reshape(case["shape"]).to(dtype).to(device)

    if case["options"].get("target_type", "prob") == "prob":
        target = tensor(case["target"])
    else:
        target = torch.tensor(case["target"], dtype=torch.int64, device=device)
    arguments = tensor(case["input"]), target, case["reduction"], case["upstream"], case["options"]
    results = make.evaluate(make.LOSSES[case["loss"]], *arguments)
    plain = [None if v is None else v.double().cpu().flatten().tolist() for v in results]
    return dict(zip(("loss", "grad_input", "grad_target"), plain))


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if np.finfo(LONG).nmant < 63:
        sys.exit(f"expected a long double with 63 bits or more behind the point, got {np.finfo(LONG).nmant}: run this on x86-64")
    device = sys.argv[2] if len(sys.argv) == 3 else "cuda" if torch.cuda.is_available() else "cpu"
    np.seterr(all="ignore")
    # PyTorch's about `mean` of kl_div.
    warnings.simplefilter("ignore", UserWarning)
    with open(os.path.join(HERE, "pytorch.jsonl")) as lines:
        cases = {case["name"]: case for case in map(json.loads, lines)}
    # A target out of range breaks PyTorch's context on the GPU; what is refused has no result.
    cases = {name: case for name, case in cases.items() if "error" not in case["expect"]}
    with open(sys.argv[1]) as lines:
        results = [line for line in map(json.loads, lines) if line["name"] in cases]
    missing = cases.keys() - {line["name"] for line in results}
    if missing:
        sys.exit(f"{sys.argv[1]}: expected results of {len(cases)} cases, got none of {len(missing)}, such as '{min(missing)}'")

    errors, references = Errors(), {}
    for name, case in cases.items():
        loss, magnitude, by_x, by_t = exact(case)
        largest = abs(np.where(np.isfinite(by_x), by_x, 0)).max(initial=0)
        loss = agree(case, "loss", loss, magnitude)
        by_x = agree(case, "grad_input", by_x, largest)
        if by_t is not None:
            of_t = abs(np.where(np.isfinite(by_t), by_t, 0)).max(initial=0)
            by_t = agree(case, "grad_target", by_t, of_t)
        references[name] = loss, magnitude, by_x, by_t
        compare(errors, "PyTorch's", case, "PyTorch", of_pytorch(case, device), references[name])
    for line in results:
        compare(errors, "ours", cases[line["name"]], line["call"], line, references[line["name"]])

    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{len(cases)} cases, {len(results)} calls of ours; PyTorch {torch.__version__} on {where}\n")
    print("| loss | type | of | largest error, ours | PyTorch's | ours is | of cases, larger in |")
    print("|---|---|---|---|---|---|---|")
    above = []
    for (loss, dtype, quantity, of), both in sorted(errors.largest.items()):
        ours, theirs = (max((e for e, _ in found.values()), default=0.0) for found in both.values())
        # Only cases in which both have a number.
        pairs = [(e, both["PyTorch's"].get(name)) for name, (e, _) in both["ours"].items()]
        pairs = [(e, theirs[0]) for e, theirs in pairs if theirs]
        larger = sum(e > theirs for e, theirs in pairs)
        if ours > theirs:
            above.append((loss, dtype, quantity, of))
        show = lambda error: f"{error:.6f} ulp" if of else f"{error:.4e}"
        verdict = "LARGER" if ours > theirs else "smaller" if ours < theirs else "equal"
        print(f"| {loss} | {dtype} | {quantity} | {show(ours)} | {show(theirs)} | {verdict} | {larger} of {len(pairs)} |")
    count = errors.strange["PyTorch's"]
    print(f"\nNot counted: {count} numbers of PyTorch's that are not finite where the exact one is.")
    for key in above:
        print(f"\nours is larger: {', '.join(filter(None, key))}")
        for whose, found in errors.largest[key].items():
            for error, place in sorted(found.values(), reverse=True)[:WORST]:
                print(f"  {whose} {error:.8g}: {place}")
    for broken in errors.broken:
        print(broken)
    sys.exit(1 if above or errors.broken else 0)


main()
