//! The benchmark's `--document`: which shapes a document names, and what the benchmark writes into
//! its tables.

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[path = "../benches/losses/document.rs"]
mod document;
#[path = "../benches/losses/shapes.rs"]
#[expect(dead_code, reason = "the landscape alone draws shapes")]
mod shapes;
#[path = "../benches/losses/table.rs"]
#[expect(dead_code, reason = "the table is of the fixed rows")]
mod table;

use document::Document;
use serde_json::{Value, json};
use std::time::Duration;

const TEXT: &str = "\
# Figures

Measured: nowhere.

| shape | ours µs | TB/s | ceiling µs | ceiling ÷ ours |
| --- | --- | --- | --- | --- |
| `ce f32 forward 1000x2000 smoothing,weights` | 1 | 2 | 3 | 4 |
| `kl bf16 backward 30x40` | – |

| library | version |
|---|---|
| another table | 1 |

| shape | torch.compile µs | ours µs | PyTorch µs |
|---|---|---|---|
| `mse f64 forward+backward 50x60` | 7 | 8 | 9 |
";

fn results() -> Value {
    let row = |name: &str, ours: Value, peers: Value| {
        json!({
            "name": name, "bytes": 2e8, "ours_ms": ours, "ceiling_ms": 0.045, "ratio": 0.9,
            "peers": peers,
        })
    };
    json!({
        "device": "a GPU",
        "date": "2026-11-30",
        "samples": 11,
        "rows": [
            row("mse f64 forward+backward 50x60", json!(0.5), json!({
                "torch.compile": { "ms": 0.0625, "timed": "graph" },
                "PyTorch": { "ms": 9.0, "timed": "queue" },
            })),
            row("kl bf16 backward 30x40", Value::Null, Value::Null),
            row("ce f32 forward 1000x2000 weights,smoothing", json!(0.05), Value::Null),
        ],
    })
}

fn refused(text: &str) -> String {
    Document::new(text).err().expect("this is no document").to_string()
}

#[test]
fn the_shapes_of_its_tables_are_read_and_those_with_a_peer_are_compared() {
    let document = Document::new(TEXT).unwrap();
    let shapes = document.shapes();
    let names: Vec<_> = shapes.iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "ce f32 forward 1000x2000 weights,smoothing",
            "kl bf16 backward 30x40",
            "mse f64 forward+backward 50x60",
        ]
    );
    let compared: Vec<_> = shapes.iter().map(|shape| document.compares(shape)).collect();
    assert_eq!(compared, [false, false, true]);
}

#[test]
fn figures_are_written_into_its_tables_and_nothing_else_changes() {
    let expected = "\
# Figures

Measured: a GPU, 2026-11-30, medians of 11 samples.

| shape | ours µs | TB/s | ceiling µs | ceiling ÷ ours |
| --- | --- | --- | --- | --- |
| `ce f32 forward 1000x2000 weights,smoothing` | 50.0 | 4.00 | 45.0 | 0.90 |
| `kl bf16 backward 30x40` | – | – | 45.0 | 0.90 |

| library | version |
|---|---|
| another table | 1 |

| shape | torch.compile µs | ours µs | PyTorch µs |
|---|---|---|---|
| `mse f64 forward+backward 50x60` | 62.5 | 500.0 | 9000.0 (queued) |
";
    let once = Document::new(TEXT).unwrap().filled(&results()).unwrap();
    assert_eq!(once, expected);
    assert_eq!(Document::new(&once).unwrap().filled(&results()).unwrap(), expected);
}

#[test]
fn a_shape_without_a_row_is_named_and_so_is_what_the_results_lack() {
    let document = Document::new(TEXT).unwrap();
    let mut some = results();
    some["rows"].as_array_mut().unwrap().remove(1);
    let why = document.filled(&some).unwrap_err();
    assert_eq!(why.to_string(), "the results have no row for 'kl bf16 backward 30x40'");
    let mut undated = results();
    undated.as_object_mut().unwrap().remove("date");
    let why = document.filled(&undated).unwrap_err();
    assert_eq!(why.to_string(), "the results have no 'date': expected those of --landscape");
}

#[test]
fn what_is_no_document_is_refused_by_name() {
    let row = "`kl bf16 backward 30x40`";
    for (from, to, expected) in [
        (row, "`kl bf16 backward 30by40`", "ROWSxCOLS, got '30by40'"),
        (row, "kl bf16", "expected a shape in backquotes, got 'kl bf16'"),
        (row, "`mse f64 forward+backward 50x60`", "50x60' is in the document twice"),
        ("TB/s", "speed", "another library, got 'speed'"),
        ("Measured: nowhere.\n", "", "expected one line 'Measured: …', got 0"),
        ("# Figures", "Measured: twice", "expected one line 'Measured: …', got 2"),
    ] {
        let why = refused(&TEXT.replace(from, to));
        assert!(why.ends_with(expected), "{why}");
    }
    assert_eq!(refused("Measured:\n"), "expected a table with a first column 'shape'");
}

#[test]
fn the_projects_own_document_is_one() {
    let document = Document::new(include_str!("../../docs/performance.md")).unwrap();
    let shapes = document.shapes();
    assert!(shapes.iter().any(|shape| document.compares(shape)));
    assert!(shapes.iter().any(|shape| !document.compares(shape)));
}

#[test]
fn a_day_is_written_as_year_month_and_day() {
    for (days, expected) in [
        (0, "1970-01-01"),
        (58, "1970-02-28"),
        (59, "1970-03-01"),
        (11_016, "2000-02-29"),
        (20_787, "2026-11-30"),
        (20_818, "2026-12-31"),
        (20_819, "2027-01-01"),
        // 2100 is not a leap year.
        (47_540, "2100-02-28"),
        (47_541, "2100-03-01"),
    ] {
        assert_eq!(document::date(Duration::from_secs(days * 86_400 + 86_399)), expected);
    }
}
