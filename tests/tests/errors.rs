//! Refused calls: the error names the argument, what was expected and what it got, and nothing is
//! queued.

use fused_loss::{
    CrossEntropy, Element, Error, Gpu, Grads, Huber, LogProb, Loss, Mse, RowSum, Saved, SmoothL1,
    Stream, Targets, Tensor, Upstreams, View, ViewMut, Workspace,
};
use half::f16;
use tests::{gpu, tensor};

fn stream() -> Stream {
    gpu().stream().unwrap()
}

#[track_caller]
fn assert_message<T>(result: Result<T, Error>, expected: &str) {
    match result {
        Ok(_) => panic!("expected the error: {expected}"),
        Err(error) => assert_eq!(error.to_string(), expected),
    }
}

#[test]
fn a_target_of_another_shape() {
    let (x, t) =
        (Tensor::<f32>::zeros(gpu(), [4, 3]).unwrap(), Tensor::zeros(gpu(), [3, 4]).unwrap());
    let expected = "target: expected shape [4, 3], got [3, 4]";
    assert_message(Mse::mean().forward(&x, &t, &stream()), expected);
    assert_message(Mse::mean().forward_backward(&x, &t, &stream()), expected);
}

#[test]
fn a_loss_or_gradient_of_another_shape() {
    let (x, t) = (tensor::<f32>(&[1.0; 6]), tensor::<f32>(&[0.0; 6]));
    let mut workspace = Workspace::new(gpu()).unwrap();
    let mut loss = Loss::zeros(gpu(), [6]).unwrap();
    assert_message(
        Mse::mean().forward_into(&x, &t, &mut loss, &mut workspace, &stream()),
        "loss: expected shape [], got [6]",
    );
    let upstream = Tensor::from_slice(gpu(), [2], &[1.0, 1.0]).unwrap();
    assert_message(
        Mse::mean().backward(&x, &t, &upstream, &stream()),
        "upstream: expected shape [], got [2]",
    );
    let upstream = Tensor::from_slice(gpu(), [], &[1.0]).unwrap();
    let mut gradient = Tensor::zeros(gpu(), [2, 3]).unwrap();
    assert_message(
        Mse::mean().backward_into(&x, &t, &upstream, &mut gradient, &stream()),
        "grad_input: expected shape [6], got [2, 3]",
    );
}

#[test]
fn a_null_pointer_for_elements() {
    let t = tensor::<f32>(&[0.0_f32; 6]);
    // SAFETY: refused before anything reads it.
    let x = unsafe { View::<f32>::from_raw(gpu(), 0, [6]) }.unwrap();
    assert_message(
        Mse::mean().forward(x, &t, &stream()),
        "input: expected a device address for 6 elements, got a null pointer",
    );
}

#[test]
fn an_address_between_elements() {
    let (x, memory) = (tensor::<f32>(&[0.0_f32; 6]), tensor::<f32>(&[0.0_f32; 8]));
    let address = memory.as_raw() + 2;
    // SAFETY: refused before anything reads it.
    let t = unsafe { View::<f32>::from_raw(gpu(), address, [6]) }.unwrap();
    assert_message(
        Mse::mean().forward(&x, t, &stream()),
        &format!("target: expected an address that is a multiple of 4, got {address:#x}"),
    );
}

#[test]
fn memory_on_another_device() {
    // A machine may have one GPU only; the emulator has two devices.
    let other = if gpu().is_emulated() { Gpu::emulated(1) } else { Gpu::new(1) };
    let Ok(other) = other else { return };
    let x = tensor::<f32>(&[0.0_f32; 6]);
    // SAFETY: refused before anything reads it.
    let t = unsafe { View::<f32>::from_raw(&other, x.as_raw(), [6]) }.unwrap();
    assert_message(
        Mse::mean().forward(&x, t, &stream()),
        "target: expected memory on device 0, got memory on device 1",
    );
}

#[test]
fn a_gradient_over_its_input() {
    let (x, t) = (tensor::<f32>(&[0.0_f32; 6]), tensor::<f32>(&[0.0_f32; 6]));
    let upstream = Tensor::from_slice(gpu(), [], &[1.0]).unwrap();
    // SAFETY: refused before anything writes it.
    let over = unsafe { ViewMut::<f32>::from_raw(gpu(), x.as_raw(), [6]) }.unwrap();
    assert_message(
        Mse::mean().backward_into(&x, &t, &upstream, over, &stream()),
        "grad_input: expected memory of its own, got memory that overlaps input",
    );
}

#[test]
fn an_input_whose_elements_are_one() {
    let t = Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap();
    let one = tensor::<f32>(&[1.0]);
    assert_message(
        Mse::mean().forward(one.view().expand([2, 3]).unwrap(), &t, &stream()),
        "input: expected a stride of 1, elements beside each other, got 0",
    );
    assert_message(t.view().expand([4]), "self: expected shape of one element, got [2, 3]");
}

#[test]
fn rows_that_would_overlap() {
    let x = Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap();
    // SAFETY: refused.
    let view = unsafe { View::<f32>::from_raw_strided(gpu(), x.as_raw(), [2, 3], 2) };
    assert_message(view.map(|_| ()), "row_stride: expected a stride of at least 3, a row, got 2");
    // SAFETY: refused.
    let view = unsafe { View::<f32>::from_raw_strided(gpu(), x.as_raw(), [3, 3], usize::MAX / 8) };
    assert_message(
        view.map(|_| ()),
        &format!(
            "row_stride: expected a stride of rows that memory could hold, got {}",
            usize::MAX / 8
        ),
    );
}

/// A single row has no gap after it, however large its stride; neither have zero rows.
#[test]
fn a_stride_of_one_row() {
    let t = Tensor::from_slice(gpu(), [1, 4], &[1.0_f32; 4]).unwrap();
    let x = Tensor::<f32>::zeros(gpu(), [1, 4]).unwrap();
    // Long enough for tiles.
    let long_t = Tensor::from_slice(gpu(), [1, 5_000], &[1.0_f32; 5_000]).unwrap();
    let long_x = Tensor::<f32>::zeros(gpu(), [1, 5_000]).unwrap();
    let class = Tensor::from_slice(gpu(), [1], &[0_i64]).unwrap();
    for stride in [1 << 60, 1 << 61, 1 << 62, 1 << 63, usize::MAX] {
        // SAFETY: the tensor's row, which lives to the end.
        let row = unsafe { View::<f32>::from_raw_strided(gpu(), x.as_raw(), [1, 4], stride) };
        let (row, stream) = (row.unwrap(), stream());
        let (loss, _) = Mse::sum().forward_backward(row, &t, &stream).unwrap();
        assert_eq!(loss.item().unwrap(), 4.0);
        let loss = Mse::new().reduction(RowSum).forward(row, &t, &stream).unwrap();
        assert_eq!(loss.values().to_vec().unwrap(), [4.0]);
        // SAFETY: as above.
        let long =
            unsafe { View::<f32>::from_raw_strided(gpu(), long_x.as_raw(), [1, 5_000], stride) };
        let long = long.unwrap();
        let loss = Mse::new().reduction(RowSum).forward(long, &long_t, &stream).unwrap();
        assert_eq!(loss.values().to_vec().unwrap(), [5_000.0]);
        let (loss, _) = CrossEntropy::mean().forward_backward(row, &class, &stream).unwrap();
        assert!((loss.item().unwrap() - 4.0_f32.ln()).abs() < 1e-6);
        // SAFETY: no elements.
        let none = unsafe { View::<f32>::from_raw_strided(gpu(), x.as_raw(), [0, 4], stride) };
        let t = Tensor::<f32>::zeros(gpu(), [0, 4]).unwrap();
        let loss = Mse::sum().forward(none.unwrap(), &t, &stream).unwrap();
        assert_eq!(loss.item().unwrap(), 0.0);
        // Half of a row each: with any stride, a view of one row has no gap that the other could be
        // in.
        // SAFETY: half of the tensor's row each.
        let (left, right) = unsafe {
            let at = |byte| x.as_raw() + byte;
            let left = View::<f32>::from_raw_strided(gpu(), at(0), [1, 2], stride).unwrap();
            (left, ViewMut::<f32>::from_raw_strided(gpu(), at(8), [1, 2], stride).unwrap())
        };
        let (t, mut one) = (Tensor::zeros(gpu(), [1, 2]).unwrap(), Loss::zeros(gpu(), []).unwrap());
        let mut workspace = Workspace::new(gpu()).unwrap();
        Mse::sum()
            .forward_backward_into(left, &t, &mut one, right, &mut workspace, &stream)
            .unwrap();
        assert_eq!(one.item().unwrap(), 0.0);
    }
}

#[test]
fn gaps_between_the_losses_of_rows() {
    let x = Tensor::<f32>::zeros(gpu(), [2, 2, 3]).unwrap();
    let memory = Tensor::<f32>::zeros(gpu(), [20]).unwrap();
    // SAFETY: refused before anything writes it.
    let loss = unsafe { ViewMut::from_raw_strided(gpu(), memory.as_raw(), [2, 2], 5) };
    let mut workspace = Workspace::new(gpu()).unwrap();
    let rows = Mse::new().reduction(RowSum);
    assert_message(
        rows.forward_into(&x, &x, loss.unwrap(), &mut workspace, &stream()),
        "loss: expected a stride of 2, rows without gaps, got 5",
    );
}

#[test]
fn options_without_meaning() {
    let x = tensor::<f32>(&[1.0; 6]);
    for delta in [0.0, -1.0, f64::NAN] {
        assert_message(
            Huber::new(delta).forward(&x, &x, &stream()),
            &format!("delta: expected a positive number, got {delta}"),
        );
    }
    for beta in [-1.0, f64::NAN] {
        assert_message(
            SmoothL1::new(beta).forward(&x, &x, &stream()),
            &format!("beta: expected a number that is not negative, got {beta}"),
        );
    }
}

#[test]
fn gradients_that_overlap() {
    let (x, t) = (tensor::<f32>(&[1.0; 6]), tensor::<f32>(&[0.0; 6]));
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let memory = Tensor::<f32>::zeros(gpu(), [12]).unwrap();
    // SAFETY: refused before anything writes them.
    let (one, other) = unsafe {
        let one = ViewMut::<f32>::from_raw(gpu(), memory.as_raw(), [6]).unwrap();
        (one, ViewMut::<f32>::from_raw(gpu(), memory.as_raw() + 20, [6]).unwrap())
    };
    assert_message(
        Mse::mean().backward_into(&x, &t, &upstream, Grads::both(one, other), &stream()),
        "grad_target: expected memory of its own, got memory that overlaps grad_input",
    );
}

/// A way in which an argument's memory is wrong for a kernel.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Null,
    OffABoundary,
    OneForAll,
    Gaps,
}

/// A view of `shape` that is wrong in this way. Nothing is ever read through it.
fn wrong_view<T: Element>(shape: &[usize], wrong: Wrong) -> View<'static, T> {
    let (cols, address) = (shape.last().copied().unwrap_or(1), 0x7f00_0000_1000);
    // SAFETY: the calls that take them are refused before anything reads them.
    unsafe {
        match wrong {
            Wrong::Null => View::from_raw(gpu(), 0, shape),
            Wrong::OffABoundary => View::from_raw(gpu(), address + 1, shape),
            Wrong::OneForAll => View::from_raw(gpu(), address, [1]).unwrap().expand(shape),
            Wrong::Gaps => View::from_raw_strided(gpu(), address, shape, cols + 3),
        }
    }
    .unwrap()
}

/// The same for what a call writes, which is never one element for all.
fn wrong_view_mut<T: Element>(shape: &[usize], wrong: Wrong) -> ViewMut<'static, T> {
    let (cols, address) = (shape.last().copied().unwrap_or(1), 0x7f00_0000_1000);
    // SAFETY: the calls that take them are refused before anything writes them.
    unsafe {
        match wrong {
            Wrong::Null => ViewMut::from_raw(gpu(), 0, shape),
            Wrong::OffABoundary => ViewMut::from_raw(gpu(), address + 1, shape),
            Wrong::Gaps => ViewMut::from_raw_strided(gpu(), address, shape, cols + 3),
            Wrong::OneForAll => unreachable!("one element is never written for all"),
        }
    }
    .unwrap()
}

/// The error message for an argument with these elements.
fn of_wrong(argument: &str, shape: &[usize], bytes: usize, wrong: Wrong) -> String {
    let (len, cols) = (shape.iter().product::<usize>(), shape.last().copied().unwrap_or(1));
    let what = match wrong {
        Wrong::Null => format!("a device address for {len} elements, got a null pointer"),
        Wrong::OffABoundary => {
            format!("an address that is a multiple of {bytes}, got 0x7f0000001001")
        }
        Wrong::OneForAll => "a stride of 1, elements beside each other, got 0".to_owned(),
        Wrong::Gaps => format!("a stride of {cols}, rows without gaps, got {}", cols + 3),
    };
    format!("{argument}: expected {what}")
}

/// Faults of arguments with one element per element, whose rows may have gaps.
const ELEMENTS: [Wrong; 3] = [Wrong::Null, Wrong::OffABoundary, Wrong::OneForAll];
/// Faults of arguments with one number or class per row, which may not have gaps.
const OF_ROWS: [Wrong; 4] = [Wrong::Null, Wrong::OffABoundary, Wrong::OneForAll, Wrong::Gaps];
const WRITTEN: [Wrong; 2] = [Wrong::Null, Wrong::OffABoundary];
const WRITTEN_OF_ROWS: [Wrong; 3] = [Wrong::Null, Wrong::OffABoundary, Wrong::Gaps];
/// Faults of upstream gradients: one may serve all.
const UPSTREAM: [Wrong; 3] = [Wrong::Null, Wrong::OffABoundary, Wrong::Gaps];

#[test]
fn memory_that_cross_entropy_cannot_use() {
    let (shape, rows, stream) = ([2, 2, 3], [2, 2], stream());
    let x = Tensor::<f32>::zeros(gpu(), shape).unwrap();
    let t = Tensor::<i64>::zeros(gpu(), rows).unwrap();
    let (mut loss, mut workspace) =
        (Loss::zeros(gpu(), rows).unwrap(), Workspace::new(gpu()).unwrap());
    let none = CrossEntropy::none();
    for wrong in ELEMENTS {
        let view = || wrong_view::<f32>(&shape, wrong);
        let of = |argument| of_wrong(argument, &shape, 4, wrong);
        assert_message(none.forward(view(), &t, &stream), &of("input"));
        assert_message(none.forward(&x, view(), &stream), &of("target"));
        let weight = wrong_view::<f32>(&[3], wrong);
        let expected = of_wrong("weight", &[3], 4, wrong);
        assert_message(none.weight(weight).forward(&x, &t, &stream), &expected);
    }
    for wrong in OF_ROWS {
        let classes = wrong_view::<i64>(&rows, wrong);
        assert_message(none.forward(&x, classes, &stream), &of_wrong("target", &rows, 8, wrong));
    }
    for wrong in WRITTEN_OF_ROWS {
        let result =
            none.forward_into(&x, &t, wrong_view_mut::<f32>(&rows, wrong), &mut workspace, &stream);
        assert_message(result, &of_wrong("loss", &rows, 4, wrong));
    }
    let mut by_x = Tensor::<f32>::zeros(gpu(), shape).unwrap();
    let grads = Grads::input(&mut by_x).scaled_by(&x);
    assert_message(
        none.forward_backward_into(&x, &t, &mut loss, grads, &mut workspace, &stream),
        "upstream: expected shape [2, 2], got [2, 2, 3]",
    );
    for wrong in UPSTREAM {
        let upstream = wrong_view::<f32>(&rows, wrong);
        let grads = Grads::input(&mut by_x).scaled_by(upstream);
        let result = none.forward_backward_into(&x, &t, &mut loss, grads, &mut workspace, &stream);
        assert_message(result, &of_wrong("upstream", &rows, 4, wrong));
    }
    for wrong in WRITTEN {
        let by = || wrong_view_mut::<f32>(&shape, wrong);
        let grads: Grads<'_, f32, f32> = Grads::input(by());
        let result = none.forward_backward_into(&x, &t, &mut loss, grads, &mut workspace, &stream);
        assert_message(result, &of_wrong("grad_input", &shape, 4, wrong));
        let result = none.forward_backward_into(
            &x,
            &x,
            &mut loss,
            Grads::both(&mut by_x, by()),
            &mut workspace,
            &stream,
        );
        assert_message(result, &of_wrong("grad_target", &shape, 4, wrong));
    }
}

#[test]
fn memory_that_elementwise_losses_cannot_use() {
    let (shape, rows, stream) = ([2, 2, 3], [2, 2], stream());
    let x = Tensor::<f64>::zeros(gpu(), shape).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let (none, by_row) = (Mse::none(), Mse::new().reduction(RowSum));
    for wrong in ELEMENTS {
        let view = || wrong_view::<f64>(&shape, wrong);
        let of = |argument| of_wrong(argument, &shape, 8, wrong);
        assert_message(none.forward(view(), &x, &stream), &of("input"));
        assert_message(none.forward(&x, view(), &stream), &of("target"));
    }
    for wrong in WRITTEN {
        let loss = wrong_view_mut::<f64>(&shape, wrong);
        let result = none.forward_into(&x, &x, loss, &mut workspace, &stream);
        assert_message(result, &of_wrong("loss", &shape, 8, wrong));
        let upstream = wrong_view::<f64>(&shape, wrong);
        let mut by_x = Tensor::zeros(gpu(), shape).unwrap();
        let result = none.backward_into(&x, &x, upstream, &mut by_x, &stream);
        assert_message(result, &of_wrong("upstream", &shape, 8, wrong));
        let by = || wrong_view_mut::<f64>(&shape, wrong);
        let result = none.backward_into(&x, &x, &x, by(), &stream);
        assert_message(result, &of_wrong("grad_input", &shape, 8, wrong));
        let result = none.backward_into(&x, &x, &x, Grads::target(by()), &stream);
        assert_message(result, &of_wrong("grad_target", &shape, 8, wrong));
    }
    for wrong in UPSTREAM {
        let upstream = wrong_view::<f64>(&rows, wrong);
        let mut by_x = Tensor::zeros(gpu(), shape).unwrap();
        let result = by_row.backward_into(&x, &x, upstream, &mut by_x, &stream);
        assert_message(result, &of_wrong("upstream", &rows, 8, wrong));
    }
    for wrong in WRITTEN_OF_ROWS {
        let loss = wrong_view_mut::<f64>(&rows, wrong);
        let result = by_row.forward_into(&x, &x, loss, &mut workspace, &stream);
        assert_message(result, &of_wrong("loss", &rows, 8, wrong));
    }
}

#[test]
fn memory_that_log_probabilities_cannot_use() {
    let (shape, rows, stream) = ([2, 2, 3], [2, 2], stream());
    let x = Tensor::<f32>::zeros(gpu(), shape).unwrap();
    let t = Tensor::<i32>::zeros(gpu(), rows).unwrap();
    let ones = Tensor::<f32>::zeros(gpu(), rows).unwrap();
    let mut other = Loss::<f32>::zeros(gpu(), rows).unwrap();
    let mut workspace = Workspace::new(gpu()).unwrap();
    let loss = LogProb::new();
    for wrong in ELEMENTS {
        let view = wrong_view::<f32>(&shape, wrong);
        assert_message(loss.forward(view, &t, &stream), &of_wrong("input", &shape, 4, wrong));
    }
    for wrong in OF_ROWS {
        let classes = wrong_view::<i32>(&rows, wrong);
        assert_message(loss.forward(&x, classes, &stream), &of_wrong("target", &rows, 4, wrong));
    }
    for wrong in WRITTEN_OF_ROWS {
        let result = || wrong_view_mut::<f32>(&rows, wrong);
        let refused = loss.forward_into(&x, &t, (result(), &mut other), &mut workspace, &stream);
        assert_message(refused, &of_wrong("log_prob", &rows, 4, wrong));
        let refused = loss.forward_into(&x, &t, (&mut other, result()), &mut workspace, &stream);
        assert_message(refused, &of_wrong("entropy", &rows, 4, wrong));
    }
    for wrong in UPSTREAM {
        let upstream = || wrong_view::<f32>(&rows, wrong);
        let refused = loss.forward_backward(&x, &t, Upstreams::log_prob(upstream()), &stream);
        assert_message(refused, &of_wrong("upstream_log_prob", &rows, 4, wrong));
        let refused = loss.forward_backward(&x, &t, Upstreams::both(&ones, upstream()), &stream);
        assert_message(refused, &of_wrong("upstream_entropy", &rows, 4, wrong));
    }
}

/// Logits need a dimension of classes, with at least one class and no more than kernels can count.
#[test]
fn logits_without_classes_or_with_too_many() {
    let (scalar, class) = (Tensor::<f32>::zeros(gpu(), []).unwrap(), tensor::<i64>(&[]));
    assert_message(
        CrossEntropy::mean().forward(&scalar, &class, &stream()),
        "input: expected a dimension for the classes, got shape []",
    );
    let rows = |cols: usize| {
        // SAFETY: refused before anything reads it.
        unsafe { View::<f32>::from_raw(gpu(), 0x7f00_0000_1000, [1, cols]) }.unwrap()
    };
    let none = Tensor::<i64>::zeros(gpu(), [2]).unwrap();
    for (cols, expected) in [
        (1 << 31, "input: expected fewer than 2^31 classes, got shape [1, 2147483648]"),
        ((1 << 31) - 1, "target: expected shape [1], got [2]"),
    ] {
        assert_message(CrossEntropy::mean().forward(rows(cols), &none, &stream()), expected);
        assert_message(LogProb::new().forward(rows(cols), &none, &stream()), expected);
    }
}

/// Options at the ends of their ranges are accepted.
#[test]
fn options_at_the_ends_of_their_ranges() {
    let x = Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap();
    let t = Tensor::<i64>::zeros(gpu(), [2]).unwrap();
    let (mean, stream) = (CrossEntropy::mean(), stream());
    for smoothing in [0.0, 1.0] {
        let _ = mean.label_smoothing(smoothing).forward(&x, &t, &stream).unwrap();
    }
    for z_loss in [f64::INFINITY, f64::NAN, -f64::MIN_POSITIVE] {
        assert_message(
            mean.z_loss(z_loss).forward(&x, &t, &stream),
            &format!("z_loss: expected a finite number that is not negative, got {z_loss}"),
        );
    }
    assert_message(
        mean.ignore_index(0).forward(&x, &x, &stream),
        "ignore_index: expected a negative number where targets are probabilities, got 0",
    );
    let _ = mean.ignore_index(-1).forward(&x, &x, &stream).unwrap();
    let _ = mean.ignore_index(0).forward(&x, &t, &stream).unwrap();
    for temperature in [1e-30, 1e30] {
        let _ = LogProb::new().temperature(temperature).forward(&x, &t, &stream).unwrap();
    }
}

#[test]
fn a_gradient_of_classes() {
    let x = Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap();
    let t = Tensor::<i64>::zeros(gpu(), [2]).unwrap();
    let (mut loss, mut workspace) =
        (Loss::zeros(gpu(), []).unwrap(), Workspace::new(gpu()).unwrap());
    let mut by_t = Tensor::<f32>::zeros(gpu(), [2, 3]).unwrap();
    let grads = Grads::target(&mut by_t);
    assert_message(
        CrossEntropy::mean().forward_backward_into(
            &x,
            &t,
            &mut loss,
            grads,
            &mut workspace,
            &stream(),
        ),
        "grad_target: expected no gradient of classes to write, got one",
    );
}

/// A view refuses to copy elements to the host from wrong memory, and a wrong address for the
/// record of targets out of range.
#[test]
fn views_that_cannot_be_read_or_reported_to() {
    for wrong in OF_ROWS {
        let view = wrong_view::<f32>(&[2, 3], wrong);
        assert_message(view.to_vec(&stream()), &of_wrong("self", &[2, 3], 4, wrong));
    }
    let mut loss = Tensor::<f32>::zeros(gpu(), []).unwrap();
    for (address, expected) in [
        (0, "fault: expected a device address for 1 elements, got a null pointer"),
        (0x1004, "fault: expected an address that is a multiple of 8, got 0x1004"),
    ] {
        // SAFETY: refused.
        let view = unsafe { loss.view_mut().with_target_fault(address) };
        assert_message(view, expected);
    }
}

/// A backward pass is refused if no forward pass has saved anything.
#[test]
fn gradients_from_what_no_forward_pass_has_left() {
    let x = Tensor::<f32>::zeros(gpu(), [4, 3]).unwrap();
    let classes = Tensor::<i64>::zeros(gpu(), [4]).unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let mean = CrossEntropy::mean();
    let (mut saved, mut loss) =
        (Saved::zeros(gpu(), [4, 3]).unwrap(), Loss::zeros(gpu(), []).unwrap());
    let expected = "saved: expected what a forward pass has left, got memory that none has written";
    assert_message(mean.backward(&x, &classes, &saved, &upstream, &stream()), expected);
    let mut workspace = Workspace::new(gpu()).unwrap();
    // A forward pass that is refused has written nothing.
    let few = Tensor::<i64>::zeros(gpu(), [3]).unwrap();
    mean.forward_saving_into(&x, &few, &mut loss, &mut saved, &mut workspace, &stream())
        .unwrap_err();
    assert_message(mean.backward(&x, &classes, &saved, &upstream, &stream()), expected);
    mean.forward_saving_into(&x, &classes, &mut loss, &mut saved, &mut workspace, &stream())
        .unwrap();
    let _ = mean.backward(&x, &classes, &saved, &upstream, &stream()).unwrap();
}

#[test]
fn gradients_from_what_was_saved_of_logits_of_another_shape() {
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let (x, wide) = (
        Tensor::<f32>::zeros(gpu(), [4, 3]).unwrap(),
        Tensor::<f32>::zeros(gpu(), [4, 5]).unwrap(),
    );
    let classes = Tensor::<i64>::zeros(gpu(), [4]).unwrap();
    let mean = CrossEntropy::mean();
    let (_, saved) = mean.forward_saving(&wide, &classes, &stream()).unwrap();
    assert_message(
        mean.backward(&x, &classes, &saved, &upstream, &stream()),
        "saved: expected shape [4, 3], got [4, 5]",
    );
    let (mut saved, mut loss) = (saved, Loss::zeros(gpu(), []).unwrap());
    let mut workspace = Workspace::new(gpu()).unwrap();
    assert_message(
        mean.forward_saving_into(&x, &classes, &mut loss, &mut saved, &mut workspace, &stream()),
        "saved: expected shape [4, 3], got [4, 5]",
    );
}

#[test]
fn gradients_from_what_was_saved_of_another_number_type() {
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let classes = Tensor::<i64>::zeros(gpu(), [4]).unwrap();
    let x = Tensor::<f16>::zeros(gpu(), [4, 3]).unwrap();
    let (_, saved) = CrossEntropy::mean().forward_saving(&x, &classes, &stream()).unwrap();
    let x = Tensor::<f32>::zeros(gpu(), [4, 3]).unwrap();
    assert_message(
        CrossEntropy::mean().backward(&x, &classes, &saved, &upstream, &stream()),
        "saved: expected a forward pass of f32 logits, got one of f16 logits",
    );
}

/// What a forward pass saves for probabilities is refused for classes. A mean over probabilities is
/// divided by the number of rows, so no kernel writes the divisor that a mean over classes needs.
#[test]
fn gradients_from_what_was_saved_of_other_targets() {
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let x = Tensor::<f32>::zeros(gpu(), [4, 3]).unwrap();
    let (long, short) =
        (Tensor::<i64>::zeros(gpu(), [4]).unwrap(), Tensor::<u8>::zeros(gpu(), [4]).unwrap());
    let mean = CrossEntropy::mean();
    let refused = |forward: Targets<'_, f32>, backward: Targets<'_, f32>, expected: &str| {
        let (_, saved) = mean.forward_saving(&x, forward, &stream()).unwrap();
        assert_message(mean.backward(&x, backward, &saved, &upstream, &stream()), expected);
    };
    refused(
        (&x).into(),
        (&long).into(),
        "saved: expected a forward pass of i64 classes, got one of probabilities",
    );
    refused(
        (&long).into(),
        (&x).into(),
        "saved: expected a forward pass of probabilities, got one of i64 classes",
    );
    refused(
        (&long).into(),
        (&short).into(),
        "saved: expected a forward pass of u8 classes, got one of i64 classes",
    );
}

#[test]
fn gradients_from_what_was_saved_with_other_options() {
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let x = Tensor::<f32>::zeros(gpu(), [4, 3]).unwrap();
    let (classes, weight) = (Tensor::<i64>::zeros(gpu(), [4]).unwrap(), tensor(&[1.0_f32; 3]));
    let plain = CrossEntropy::mean();
    let (_, saved) = plain.forward_saving(&x, &classes, &stream()).unwrap();
    for (other, expected, got) in [
        (plain.label_smoothing(0.1), "with label_smoothing 0.1", "with label_smoothing 0"),
        (plain.z_loss(0.5), "with z_loss 0.5", "with z_loss 0"),
        (plain.ignore_index(2), "with ignore_index 2", "with ignore_index -100"),
        (plain.weight(weight.view()), "with class weights", "without class weights"),
    ] {
        assert_message(
            other.backward(&x, &classes, &saved, &upstream, &stream()),
            &format!("saved: expected a forward pass {expected}, got one {got}"),
        );
    }
    let _ = plain.backward(&x, &classes, &saved, &upstream, &stream()).unwrap();
}

/// The gradient may be the right half of each row and the logits the left half: they do not
/// overlap.
#[test]
fn columns_of_one_matrix_do_not_overlap() {
    let data: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let wide = Tensor::from_slice(gpu(), [2, 8], &data).unwrap();
    let t = Tensor::<f32>::zeros(gpu(), [2, 4]).unwrap();
    let upstream = Tensor::from_slice(gpu(), [], &[1.0_f32]).unwrap();
    let (stream, columns) = (stream(), [2, 4]);
    // SAFETY: both views are of `wide`, which is read only after the work is done, and they share
    // no element.
    let (left, right) = unsafe {
        let left = View::<f32>::from_raw_strided(gpu(), wide.as_raw(), columns, 8).unwrap();
        let right = wide.as_raw() + 16;
        (left, ViewMut::<f32>::from_raw_strided(gpu(), right, columns, 8).unwrap())
    };
    Mse::sum().backward_into(left, &t, &upstream, right, &stream).unwrap();
    stream.synchronize().unwrap();
    let mut expected = data;
    for row in expected.chunks_mut(8) {
        let (logits, gradients) = row.split_at_mut(4);
        for (gradient, logit) in gradients.iter_mut().zip(logits) {
            *gradient = 2.0 * *logit;
        }
    }
    assert_eq!(wide.to_vec().unwrap(), expected);
}

#[test]
fn tensors_of_two_devices() {
    let open = if gpu().is_emulated() { Gpu::emulated } else { Gpu::new };
    let Ok(other) = open(1) else {
        eprintln!("one device alone: nothing to mix");
        return;
    };
    let x = tensor::<f32>(&[1.0; 6]);
    let t = Tensor::<f32>::zeros(&other, [6]).unwrap();
    assert_message(
        Mse::mean().forward(&x, &t, &stream()),
        "target: expected memory on device 0, got memory on device 1",
    );
    let mut workspace = Workspace::new(&other).unwrap();
    let (t, mut loss) = (tensor::<f32>(&[0.0; 6]), Loss::zeros(gpu(), []).unwrap());
    assert_message(
        Mse::mean().forward_into(&x, &t, &mut loss, &mut workspace, &stream()),
        "workspace: expected memory on device 0, got memory on device 1",
    );
}

#[test]
fn data_of_another_length() {
    assert_message(
        Tensor::from_slice(gpu(), [2, 3], &[0.0_f32; 5]),
        "data: expected 6 elements, got 5",
    );
    let t = tensor::<f32>(&[0.0_f32; 6]);
    assert_message(t.copy_to_slice(&mut [0.0; 7]), "data: expected 6 elements, got 7");
}

#[test]
fn a_shape_that_no_memory_holds() {
    assert_message(
        Tensor::<f32>::zeros(gpu(), [usize::MAX, 2]),
        &format!("shape: expected fewer elements than 2^60, got [{}, 2]", usize::MAX),
    );
}

#[test]
fn a_device_that_is_not_there() {
    let open = if gpu().is_emulated() { Gpu::emulated } else { Gpu::new };
    let error = open(999).unwrap_err().to_string();
    assert!(error.starts_with("ordinal: expected a device below "), "{error}");
    assert!(error.ends_with(", got 999"), "{error}");
}

#[test]
fn the_other_driver_in_one_process() {
    let (ask, expected) = if gpu().is_emulated() {
        (
            Gpu::new as fn(u32) -> _,
            "this process already runs on the emulator; the NVIDIA driver cannot be had beside it",
        )
    } else {
        (
            Gpu::emulated as fn(u32) -> _,
            "this process already runs on the NVIDIA driver; the emulator cannot be had beside it",
        )
    };
    assert_message(ask(0), expected);
}

#[test]
fn the_name_says_what_the_device_is() {
    assert_eq!(gpu().name().contains("emulator"), gpu().is_emulated());
    assert!(gpu().compute_capability() >= (8, 0));
}

/// A refused call leaves its arguments unchanged and the stream usable.
#[test]
fn nothing_is_queued_by_a_refused_call() {
    let (x, t) = (tensor::<f32>(&[1.0; 6]), tensor::<f32>(&[0.0; 5]));
    let mut loss = Loss::zeros(gpu(), []).unwrap();
    let (stream, mut workspace) = (stream(), Workspace::new(gpu()).unwrap());
    Mse::mean().forward_into(&x, &t, &mut loss, &mut workspace, &stream).unwrap_err();
    stream.synchronize().unwrap();
    assert_eq!(loss.item().unwrap(), 0.0);
    let t = tensor::<f32>(&[0.0; 6]);
    Mse::mean().forward_into(&x, &t, &mut loss, &mut workspace, &stream).unwrap();
    assert_eq!(loss.item().unwrap(), 1.0);
}
