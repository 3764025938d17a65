//! The benchmark's `--landscape`, without a device: its command line (and that of `--first-call`),
//! the shapes it draws, their memory layout, and its summary of results.

use std::error::Error;
use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[path = "../benches/losses/document.rs"]
#[expect(dead_code, reason = "bench_document.rs tests it")]
mod document;
#[path = "../benches/losses/heat.rs"]
mod heat;
#[path = "../benches/losses/layout.rs"]
mod layout;
#[path = "../benches/losses/options.rs"]
#[expect(dead_code, reason = "the benchmark alone reads and writes files")]
mod options;
#[path = "../benches/losses/shapes.rs"]
mod shapes;
#[path = "../benches/losses/summary.rs"]
mod summary;
#[path = "../benches/losses/table.rs"]
#[expect(dead_code, reason = "the table is of the fixed rows")]
mod table;

use layout::Layout;
use options::Options;
use serde_json::{Value, json};
use shapes::{Dtype, Extra, Loss, MOST_BYTES, MOST_COLS, Pass, Range, Shape};

const ANY: Range = Range { only: None, most_bytes: MOST_BYTES };

fn drawn(seed: u64, count: u64, range: Range) -> Vec<Shape> {
    (0..count).map(|index| Shape::draw(seed, index, range)).collect()
}

/// The fraction of shapes for which `is` holds.
fn part(shapes: &[Shape], is: impl Fn(&Shape) -> bool) -> f64 {
    shapes.iter().filter(|shape| is(shape)).count() as f64 / shapes.len() as f64
}

fn shape(text: &str) -> Shape {
    text.parse().unwrap()
}

#[test]
fn a_seed_draws_the_same_shapes_again_and_another_others() {
    assert_eq!(drawn(7, 50, ANY), drawn(7, 50, ANY));
    let (some, others) = (drawn(7, 50, ANY), drawn(8, 50, ANY));
    assert!(some.iter().zip(&others).all(|(one, other)| one != other));
    // A shape depends on its index alone, not on the number of shapes drawn.
    assert_eq!(Shape::draw(7, 33, ANY), some[33]);
}

#[test]
fn shapes_are_within_their_limits_and_reach_both_ends() {
    let shapes = drawn(1, 4000, ANY);
    for shape in &shapes {
        let (bytes, row) = (shape.bytes(), shape.cols * shape.dtype.bytes());
        assert!((2..=MOST_COLS).contains(&shape.cols), "{shape}");
        assert!(bytes + row > shapes::LEAST_BYTES && bytes <= MOST_BYTES, "{shape}: {bytes} bytes");
    }
    assert!(shapes.iter().any(|shape| shape.cols < 5 && shape.rows > 10_000_000));
    assert!(shapes.iter().any(|shape| shape.cols > 200_000 && shape.rows < 100));
    // Logarithms are uniform: half of the columns and half of the bytes are below the geometric
    // mean.
    for below in [
        part(&shapes, |shape| shape.cols * shape.cols < 2 * MOST_COLS),
        part(&shapes, |shape| shape.bytes() < 181 << 20),
    ] {
        assert!((0.42..0.58).contains(&below), "{below}");
    }
}

#[test]
fn every_kind_of_shape_appears_as_often_as_it_should() {
    let shapes = drawn(2, 4000, ANY);
    let near = |what: &str, got: f64, expected: f64| {
        let off = (got - expected).abs();
        assert!(off < 0.04, "{what}: {got:.3}, expected {expected:.3}");
    };
    for (loss, expected) in [(Loss::Ce, 0.7), (Loss::Kl, 0.15), (Loss::Mse, 0.15)] {
        near(loss.name(), part(&shapes, |shape| shape.loss == loss), expected);
    }
    for &dtype in Dtype::ALL {
        near(dtype.name(), part(&shapes, |shape| shape.dtype == dtype), 0.25);
    }
    for &pass in Pass::ALL {
        near(pass.name(), part(&shapes, |shape| shape.pass == pass), 1.0 / 3.0);
    }
    let placed = |shape: &Shape| shape.has(Extra::Gaps) || shape.has(Extra::Offset);
    near("places", part(&shapes, placed), 0.1);
    near("powers of two", part(&shapes, |shape| shape.cols.is_power_of_two()), 0.36);
    near("odd", part(&shapes, |shape| shape.cols % 2 == 1), 0.33);
    let of_ce: Vec<_> = shapes.iter().filter(|shape| shape.loss == Loss::Ce).cloned().collect();
    let options = [Extra::Weights, Extra::ZLoss, Extra::Probabilities];
    near("options", part(&of_ce, |shape| options.iter().any(|&option| shape.has(option))), 0.2);
    for &extra in Extra::ALL {
        let is_drawn = shapes.iter().any(|shape| shape.has(extra));
        assert_eq!(is_drawn, extra != Extra::Ignored, "'{}'", extra.name());
    }
}

#[test]
fn a_range_limits_what_is_drawn() {
    let range = Range { only: Some(Loss::Mse), most_bytes: 32 << 20 };
    for shape in drawn(3, 500, range) {
        assert!(shape.loss == Loss::Mse && shape.bytes() <= 32 << 20, "{shape}");
    }
}

#[test]
fn the_name_of_a_shape_is_read_as_that_shape() {
    for shape in drawn(4, 500, ANY) {
        assert_eq!(shape.to_string().parse::<Shape>().unwrap(), shape);
    }
    let text = "ce f32 forward+backward 65536x1000 weights,smoothing";
    assert_eq!(shape(text).to_string(), text);
}

#[test]
fn the_name_of_no_shape_is_refused() {
    for (text, expected) in [
        ("ce f32 forward", "expected LOSS DTYPE PASS ROWSxCOLS [EXTRA,...]"),
        ("ce f32 forward 3by4", "expected ROWSxCOLS, got '3by4'"),
        ("ce f8 forward 3x4", "expected one of f32, bf16, f16, f64, got 'f8'"),
        ("ce f32 forward 3x4 rows", "ce has no 'rows'"),
        ("mse f32 forward 3x4 weights", "mse has no 'weights'"),
        ("kl f32 forward 3x4 ignored", "kl has no 'ignored'"),
        (
            "ce f32 forward 3x4 ignored,z-loss",
            "'ignored' goes with neither 'probabilities' nor 'z-loss'",
        ),
        ("kl f32 forward 3x4 rows,mean", "'rows' and 'mean' exclude each other"),
        ("ce f32 forward 0x4", "expected 1 to 4294967296 elements"),
        ("ce f32 forward 1x2000000", "expected at most 1200000 columns"),
    ] {
        let why = text.parse::<Shape>().unwrap_err();
        assert_eq!(why, format!("--shape '{text}': {expected}"));
    }
}

#[test]
fn arrays_of_a_shape_do_not_overlap_and_rotate_beyond_the_cache() {
    for shape in drawn(5, 2000, ANY) {
        let layout = Layout::new(&shape);
        let matrix = (shape.rows * shape.stride()) * shape.dtype.bytes();
        assert!(layout.matrix >= matrix && layout.touched <= layout.matrix, "{shape}");
        assert!(layout.touched >= shape.bytes(), "{shape}");
        assert!(layout.of_rows >= layout.matrix, "{shape}");
        assert!(layout.target >= layout.of_rows + layout.of_rows_bytes, "{shape}");
        assert!(layout.gradient >= layout.target + (layout.reads - 1) * layout.matrix, "{shape}");
        assert!(layout.slot >= layout.gradient + layout.writes * layout.matrix, "{shape}");
        let rotation = layout.copies * layout.moved();
        assert!(rotation >= 200 << 20, "{shape}: {} MiB", rotation >> 20);
        assert!(layout.calls >= layout.copies, "{shape}");
        // A device has 80 GB. The layout does not contain what the forward pass saves.
        assert!(layout.bytes() < 40 << 30, "{shape}: {} MiB", layout.bytes() >> 20);
    }
}

#[test]
fn bytes_are_those_of_the_sectors_with_elements_in_them() {
    let touched = |text: &str| Layout::new(&shape(text)).touched;
    // Without gaps, a call touches all bytes of the tensor and no others.
    assert_eq!(touched("ce f32 forward 1001x999"), 1001 * 999 * 4);
    // Gaps of 4 bytes share sectors with elements, so they are read anyway.
    assert_eq!(touched("ce f32 forward 64x4 gaps"), 64 * 5 * 4);
    // Gaps of 256 bytes are 8 whole sectors.
    assert_eq!(touched("ce f32 forward 64x1024 gaps"), 64 * 1024 * 4);
    // Rows of 257 × 4 bytes, at a stride of 321 × 4: 33 sectors, or 34 if a row crosses one more
    // boundary, of at most 41.
    let rows = touched("ce f32 forward 64x257 gaps") / 32;
    assert!((64 * 33..=64 * 34).contains(&rows), "{rows}");
}

#[test]
fn what_is_read_of_rows_counts() {
    let of_rows = |text: &str| Layout::new(&shape(text)).of_rows_bytes;
    assert_eq!(of_rows("ce f32 forward 100x8"), 100 * 8);
    assert_eq!(of_rows("ce f32 backward 100x8"), 100 * (8 + 2 * 4));
    assert_eq!(of_rows("ce f64 backward 100x8 probabilities"), 100 * 3 * 8);
    assert_eq!(of_rows("mse bf16 forward 100x8"), 0);
    assert_eq!(of_rows("mse bf16 backward 100x8 rows"), 100 * 4);
}

fn options(line: &[&str]) -> Result<Options> {
    Options::from_args(line.iter().map(|arg| (*arg).to_owned()))
}

#[test]
fn the_command_line_says_what_is_drawn() {
    let line = ["--landscape", "--seed", "9", "--shapes", "10", "--only", "kl", "--max-mib", "64"];
    let landscape = options(&line).unwrap().landscape.unwrap();
    assert_eq!((landscape.seed, landscape.shapes), (Some(9), 10));
    assert_eq!((landscape.range.only, landscape.range.most_bytes), (Some(Loss::Kl), 64 << 20));
    let landscape = options(&["--landscape"]).unwrap().landscape.unwrap();
    assert_eq!((landscape.seed, landscape.shapes, landscape.peers_shapes), (None, 150, 60));
    assert!(!landscape.emulated && landscape.named.is_empty());
    let line = ["--landscape", "--shape", "ce f32 forward 3x4", "--shape", "kl f64 backward 5x6"];
    let landscape = options(&line).unwrap().landscape.unwrap();
    assert_eq!(landscape.named, ["ce f32 forward 3x4", "kl f64 backward 5x6"].map(shape));
    assert!(options(&["MSE"]).unwrap().landscape.is_none());
}

#[test]
fn a_document_goes_with_a_landscape_or_with_results() {
    let of_document = options(&["--landscape", "--document", "a.md", "--no-peers"]).unwrap();
    assert_eq!(of_document.document.as_deref(), Some(Path::new("a.md")));
    assert!(of_document.landscape.unwrap().named.is_empty());
    let of_results = options(&["--from", "a.json", "--document", "a.md"]).unwrap();
    assert!(of_results.document.is_some() && of_results.landscape.is_none());
}

#[test]
fn the_command_line_says_whether_first_calls_are_measured() {
    let all = options(&["--bench", "--first-call", "MSE"]).unwrap();
    let first_call = all.first_call.unwrap();
    assert_eq!((first_call.of, first_call.emulated), (None, false));
    assert_eq!(all.wanted, ["MSE"]);
    let one = options(&["--first-call-of", "CE 128×1000 f32", "--emulated"]).unwrap();
    let first_call = one.first_call.unwrap();
    assert_eq!(first_call.of.as_deref(), Some("CE 128×1000 f32"));
    assert!(first_call.emulated && one.landscape.is_none());
    assert!(options(&["MSE"]).unwrap().first_call.is_none());
}

#[test]
fn options_that_do_not_go_together_are_named() {
    let shape = ["--shape", "ce f32 forward 3x4"];
    for (line, expected) in [
        (vec!["--seed", "1"], "expected --landscape beside --seed"),
        (vec!["--peers-shapes", "1"], "expected --landscape beside --peers-shapes"),
        (
            vec!["--landscape", "--from", "x"],
            "--from measures nothing: expected --picture or --document beside it, got --landscape",
        ),
        (
            vec!["--seed", "1", "--from", "x"],
            "--from measures nothing: expected --picture or --document beside it, got --seed",
        ),
        (
            vec!["--landscape", "MSE"],
            "--landscape draws shapes that have no fixed names: expected --shape or --only, \
             got MSE",
        ),
        (
            vec!["--landscape", shape[0], shape[1], "--seed", "1"],
            "--shape draws nothing: expected no --seed beside it",
        ),
        (
            vec!["--landscape", shape[0], shape[1], "--only", "ce"],
            "--shape draws nothing: expected no --only beside it",
        ),
        (
            vec!["--landscape", "--no-peers", "--peers-shapes", "1"],
            "--no-peers leaves out what --peers-shapes limits: expected one",
        ),
        (vec!["--document", "x"], "expected --landscape beside --document"),
        (
            vec!["--landscape", "--document", "x", "--seed", "1"],
            "--document names the shapes: expected no --seed beside it",
        ),
        (
            vec!["--landscape", "--document", "x", shape[0], shape[1]],
            "--document names the shapes: expected no --shape beside it",
        ),
        (
            vec!["--landscape", "--document", "x", "--peers-shapes", "1"],
            "--document names the shapes: expected no --peers-shapes beside it",
        ),
        (vec!["--landscape", "--shapes", "0"], "--shapes 0: expected one at least"),
        (vec!["--landscape", "--max-mib", "8"], "--max-mib 8: expected 16 to 2048"),
        (
            vec!["--landscape", "--only", "huber"],
            "--only huber: expected one of ce, kl, mse, got 'huber'",
        ),
        (vec!["--landscape", "--seed"], "--seed: expected a value"),
        (
            vec!["--first-call", "--json", "x"],
            "--first-call prints its own table: expected names alone beside it, got --json",
        ),
        (
            vec!["--first-call", "--landscape"],
            "--first-call prints its own table: expected names alone beside it, got --landscape",
        ),
        (
            vec!["--first-call", "--seed", "1"],
            "--first-call prints its own table: expected names alone beside it, got --seed",
        ),
    ] {
        assert_eq!(options(&line).unwrap_err().to_string(), expected, "{line:?}");
    }
}

fn results() -> Value {
    let row = |name: &str, ratio: f64, mib: f64| {
        let shape = shape(name);
        json!({
            "name": name, "loss": shape.loss.name(), "dtype": shape.dtype.name(),
            "pass": shape.pass.name(), "rows": shape.rows, "cols": shape.cols,
            "size": mib * f64::from(1 << 20),
            "ours_ms": 0.1 / ratio, "ceiling_ms": 0.1, "ratio": ratio,
        })
    };
    let mut slow = row("ce f32 forward 1000x20000 weights,smoothing", 0.5, 76.0);
    slow["slower_than"] = json!(["quack"]);
    slow["peers"] = json!({ "quack": { "ms": 0.15, "way": "cross_entropy" } });
    let mut fast = row("ce f32 forward 2000x20000", 0.96, 153.0);
    fast["slower_than"] = json!([]);
    json!({
        "device": "a GPU",
        "landscape": { "seed": "5", "shapes": 5 },
        "rows": [
            fast,
            slow,
            row("kl bf16 backward 100x400000 rows", 0.91, 76.0),
            row("mse f64 forward+backward 3000000x2", 0.7, 45.0),
        ],
        "failed": [{ "name": "ce f16 forward 3x4", "why": "wrong" }],
        "libraries": [
            { "library": "quack", "version": "1" },
            { "library": "Liger", "absent": "no" },
        ],
        "notes": ["a note"],
    })
}

#[test]
fn the_summary_says_where_we_are_slow_how_often_and_who_is_ahead() {
    let expected = "\
4 shapes of seed 5 on a GPU

The 4 furthest from the ceiling:

| ceiling ÷ ours | ours µs | ceiling µs | MiB | shape |
| --- | --- | --- | --- | --- |
| 0.500 | 200.0 | 100.0 | 76 | ce f32 forward 1000x20000 weights,smoothing |
| 0.700 | 142.9 | 100.0 | 45 | mse f64 forward+backward 3000000x2 |
| 0.910 | 109.9 | 100.0 | 76 | kl bf16 backward 100x400000 rows |
| 0.960 | 104.2 | 100.0 | 153 | ce f32 forward 2000x20000 |

Of shapes from 64 MiB, the share that reaches a part of the ceiling:

| | shapes | ≥ 0.95 | ≥ 0.90 | ≥ 0.85 | ≥ 0.80 | ≥ 0.75 | median |
| --- | --- | --- | --- | --- | --- | --- | --- |
| f32 forward | 2 | 50 % | 50 % | 50 % | 50 % | 50 % | 0.730 |
| bf16 backward | 1 | 0 % | 100 % | 100 % | 100 % | 100 % | 0.910 |
| all | 3 | 33 % | 67 % | 67 % | 67 % | 67 % | 0.910 |
| smaller than 64 MiB | 1 | 0 % | 0 % | 0 % | 0 % | 0 % | 0.700 |

Another library is ahead on 1 of 2 shapes it measured.

| shape | ours µs | library | its µs | ceiling µs |
| --- | --- | --- | --- | --- |
| ce f32 forward 1000x20000 weights,smoothing | 200.0 | quack: cross_entropy | 150.0 | 100.0 |

failed: ce f16 forward 3x4: wrong
quack: 1
Liger is absent: no
a note";
    assert_eq!(summary::text(&results()), expected);
}

#[test]
fn twenty_shapes_are_shown_and_no_library_where_none_has_measured() {
    let row = &results()["rows"][0];
    let mut row = row.clone();
    row.as_object_mut().unwrap().remove("slower_than");
    let text = summary::text(&json!({ "rows": vec![row; 30] }));
    assert!(text.contains("The 20 furthest"), "{text}");
    assert!(!text.contains("ahead"), "{text}");
}

#[test]
fn the_picture_has_a_panel_for_each_type_and_pass_and_a_mark_for_each_shape() {
    let svg = heat::svg(&results()).unwrap();
    for dtype in Dtype::ALL {
        for pass in Pass::ALL {
            let title = format!(">{}, {}</text>", dtype.name(), pass.name());
            assert!(svg.contains(&title), "'{title}' is not in the picture");
        }
    }
    assert_eq!(svg.matches("<title>").count(), 4);
    assert!(svg.contains("<title>ce f32 forward 2000x20000: 0.960</title>"));
    // Every group is closed, and so is the root.
    assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    let why = heat::svg(&json!({ "rows": [] })).unwrap_err();
    assert_eq!(why.to_string(), "expected results with a ceiling, got none");
}
