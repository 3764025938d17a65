//! The picture and the table that are made from the benchmark's results, in the form that it
//! writes.

#[path = "../benches/losses/picture.rs"]
mod picture;
#[path = "../benches/losses/table.rs"]
mod table;

use serde_json::{Value, json};

fn results() -> Value {
    let row = |name: &str, ours: f64, peers: Value, slower_than: Value| {
        json!({
            "name": name, "bytes": 1e9, "ours_ms": ours, "ceiling_ms": 0.25, "ratio": 0.25 / ours,
            "peers": peers, "slower_than": slower_than,
        })
    };
    let queued = json!({ "ms": 1.0, "way": "F.mse_loss", "timed": "queue", "others": [] });
    let failed = json!({ "error": "no", "others": [{ "way": "one", "error": "no" }] });
    let faster = json!({ "ms": 0.3, "way": "one", "timed": "graph", "others": [] });
    json!({
        "device": "a GPU",
        "libraries": [
            { "library": "PyTorch", "version": "2" },
            { "library": "Liger", "version": "1" },
            { "library": "quack", "absent": "not installed" },
        ],
        "notes": ["a note"],
        "rows": [
            row("MSE 2×3 f32, forward", 0.26, json!({ "PyTorch": queued, "Liger": failed }), json!([])),
            row("CE 4×5 bf16, forward", 0.5, json!({ "Liger": faster }), json!(["Liger"])),
            { "name": "CE 4×5 f32, in a graph", "bytes": 0.0, "ours_ms": 0.004, "ceiling_ms": null, "ratio": null },
        ],
    })
}

#[test]
fn the_picture_shows_rows_with_a_ceiling_and_libraries_that_were_there() {
    let svg = picture::svg(&results()).unwrap();
    for shown in [
        "MSE 2×3 f32, forward",
        "CE 4×5 bf16, forward",
        "ceiling ÷ time",
        "fused-loss",
        "PyTorch",
        "Liger",
        "0.96",
        "0.25",
    ] {
        assert!(svg.contains(shown), "'{shown}' is not in the picture");
    }
    for hidden in ["in a graph", "quack"] {
        assert!(!svg.contains(hidden), "'{hidden}' is in the picture");
    }
}

#[test]
fn no_picture_of_nothing() {
    let why = picture::svg(&json!({ "rows": [] })).unwrap_err();
    assert_eq!(why.to_string(), "expected results with a ceiling, got none");
}

#[test]
fn the_table_says_who_is_faster_who_is_absent_and_what_failed() {
    let table = table::markdown(&results());
    let expected = "\
| | ours ms | TB/s | ceiling ms | ceiling ÷ ours | PyTorch ms | Liger ms | slower than |
| --- | --- | --- | --- | --- | --- | --- | --- |
| MSE 2×3 f32, forward | 0.2600 | 3.85 | 0.2500 | 0.962 | 1.0000 (queued) | error | none |
| CE 4×5 bf16, forward | 0.5000 | 2.00 | 0.2500 | 0.500 | – | 0.3000 | Liger |
| CE 4×5 f32, in a graph | 0.0040 | – | – | – | – | – | – |

PyTorch: 2
Liger: 1
quack is absent: not installed
a note
MSE 2×3 f32, forward: Liger, one: no";
    assert_eq!(table, expected);
}
