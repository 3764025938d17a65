//! The results of `--landscape` as text: where we are furthest from the ceiling, how many shapes
//! are how close to it, and where another library is faster.

use crate::table::list;
use serde_json::Value;

/// The fractions of the ceiling by which shapes are counted.
const LEVELS: [f64; 5] = [0.95, 0.90, 0.85, 0.80, 0.75];

/// How many of the shapes furthest from the ceiling are shown.
const WORST: usize = 20;

/// The least bytes of logits of a shape that counts: a smaller one spends much of its time on the
/// launch.
const COUNTED: f64 = (64_u64 << 20) as f64;

/// The whole summary.
pub(crate) fn text(results: &Value) -> String {
    let mut lines = Vec::new();
    if let Some(seed) = results["landscape"]["seed"].as_str() {
        let device = results["device"].as_str().unwrap_or("a device");
        lines.push(format!("{} shapes of seed {seed} on {device}", list(&results["rows"]).count()));
    }
    lines.extend(worst(results));
    lines.extend(shares(results));
    lines.extend(behind(results));
    for failed in list(&results["failed"]) {
        lines.push(format!("failed: {}: {}", string(failed, "name"), string(failed, "why")));
    }
    for library in list(&results["libraries"]) {
        let name = string(library, "library");
        lines.push(match (library["version"].as_str(), library["absent"].as_str()) {
            (Some(version), _) => format!("{name}: {version}"),
            (None, why) => format!("{name} is absent: {}", why.unwrap_or("no reason given")),
        });
    }
    lines.extend(list(&results["notes"]).filter_map(Value::as_str).map(str::to_owned));
    lines.join("\n")
}

/// The fraction of the ceiling that a row reaches.
fn ratio(row: &Value) -> Option<f64> {
    row["ratio"].as_f64().filter(|ratio| ratio.is_finite())
}

fn string<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn microseconds(ms: &Value) -> String {
    ms.as_f64().map_or("–".to_owned(), |ms| format!("{:.1}", ms * 1e3))
}

fn worst(results: &Value) -> Vec<String> {
    let mut rows: Vec<_> =
        list(&results["rows"]).filter_map(|row| Some((ratio(row)?, row))).collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    rows.truncate(WORST);
    let mut lines = vec![
        format!("\nThe {} furthest from the ceiling:\n", rows.len()),
        "| ceiling ÷ ours | ours µs | ceiling µs | MiB | shape |".to_owned(),
        "| --- | --- | --- | --- | --- |".to_owned(),
    ];
    lines.extend(rows.into_iter().map(|(ratio, row)| {
        let mib = row["size"].as_f64().unwrap_or(f64::NAN) / f64::from(1 << 20);
        let (ours, ceiling) = (microseconds(&row["ours_ms"]), microseconds(&row["ceiling_ms"]));
        format!("| {ratio:.3} | {ours} | {ceiling} | {mib:.0} | {} |", string(row, "name"))
    }));
    lines
}

/// The share of shapes at or above each level, and their median fraction: by element type and pass,
/// for all shapes, and for the smaller ones.
fn shares(results: &Value) -> Vec<String> {
    let rows: Vec<_> = list(&results["rows"]).filter(|row| ratio(row).is_some()).collect();
    let counted = |row: &&&Value| row["size"].as_f64().is_some_and(|size| size >= COUNTED);
    let large: Vec<&Value> = rows.iter().filter(counted).copied().collect();
    let small: Vec<&Value> = rows.iter().filter(|row| !counted(row)).copied().collect();
    let levels: Vec<_> = LEVELS.iter().map(|level| format!("≥ {level:.2}")).collect();
    let mut lines = vec![
        "\nOf shapes from 64 MiB, the share that reaches a part of the ceiling:\n".to_owned(),
        format!("| | shapes | {} | median |", levels.join(" | ")),
        format!("|{}", " --- |".repeat(LEVELS.len() + 3)),
    ];
    for dtype in ["f32", "bf16", "f16", "f64"] {
        for pass in ["forward", "forward+backward", "backward"] {
            let is = |row: &&&Value| string(row, "dtype") == dtype && string(row, "pass") == pass;
            let of: Vec<&Value> = large.iter().filter(is).copied().collect();
            lines.extend(share(&format!("{dtype} {pass}"), &of));
        }
    }
    lines.extend(share("all", &large));
    lines.extend(share("smaller than 64 MiB", &small));
    lines
}

/// A line of the shares; none if there are no shapes.
fn share(name: &str, rows: &[&Value]) -> Option<String> {
    let mut ratios: Vec<f64> = rows.iter().filter_map(|row| ratio(row)).collect();
    ratios.sort_by(f64::total_cmp);
    let median = match ratios.len() {
        0 => return None,
        len if len % 2 == 0 => (ratios[len / 2 - 1] + ratios[len / 2]) / 2.0,
        len => ratios[len / 2],
    };
    let part = |level: &f64| {
        let reached = ratios.iter().filter(|ratio| *ratio >= level).count();
        format!("{:.0} %", 100.0 * reached as f64 / ratios.len() as f64)
    };
    let parts: Vec<_> = LEVELS.iter().map(part).collect();
    Some(format!("| {name} | {} | {} | {median:.3} |", ratios.len(), parts.join(" | ")))
}

/// Every shape on which another library is faster; empty if none has measured any.
fn behind(results: &Value) -> Vec<String> {
    let compared = list(&results["rows"]).filter(|row| row.get("slower_than").is_some()).count();
    if compared == 0 {
        return Vec::new();
    }
    let mut lines = Vec::new();
    let mut shapes = 0;
    for row in list(&results["rows"]) {
        let ahead: Vec<_> = list(&row["slower_than"]).filter_map(Value::as_str).collect();
        shapes += usize::from(!ahead.is_empty());
        for library in ahead {
            let (ours, ceiling) = (microseconds(&row["ours_ms"]), microseconds(&row["ceiling_ms"]));
            let theirs = &row["peers"][library];
            let (their, way) = (microseconds(&theirs["ms"]), string(theirs, "way"));
            let name = string(row, "name");
            lines.push(format!("| {name} | {ours} | {library}: {way} | {their} | {ceiling} |"));
        }
    }
    let mut all =
        vec![format!("\nAnother library is ahead on {shapes} of {compared} shapes it measured.\n")];
    if !lines.is_empty() {
        all.push("| shape | ours µs | library | its µs | ceiling µs |".to_owned());
        all.push("| --- | --- | --- | --- | --- |".to_owned());
        all.extend(lines);
    }
    all.push(String::new());
    all
}
