//! The results as a table.

use serde_json::Value;
use std::fmt::Write;

/// The names of the other libraries that were measured.
pub(crate) fn libraries(results: &Value) -> impl Iterator<Item = &str> {
    let present = list(&results["libraries"]).filter(|library| library.get("absent").is_none());
    present.filter_map(|library| library["library"].as_str())
}

/// The elements of a list; none for any other value.
pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// All rows, and below them the notes on the other libraries.
pub(crate) fn markdown(results: &Value) -> String {
    let libraries: Vec<&str> = libraries(results).collect();
    let titles = ["", "ours ms", "TB/s", "ceiling ms", "ceiling ÷ ours"];
    let mut header: Vec<_> = titles.map(str::to_owned).into();
    header.extend(libraries.iter().map(|library| format!("{library} ms")));
    header.push("slower than".to_owned());
    let mut lines = vec![line(&header), line(&vec!["---"; header.len()])];
    let mut errors = Vec::new();
    for row in list(&results["rows"]) {
        let name = row["name"].as_str().unwrap_or_default();
        let ours = row["ours_ms"].as_f64().unwrap_or(f64::NAN);
        let rate = row["bytes"].as_f64().filter(|&bytes| bytes > 0.0).map(|b| b / ours / 1e9);
        let mut cells = vec![
            name.to_owned(),
            number(Some(ours), 4),
            number(rate, 2),
            number(row["ceiling_ms"].as_f64(), 4),
            number(row["ratio"].as_f64(), 3),
        ];
        for library in &libraries {
            let result = &row["peers"][library];
            cells.push(match result["timed"].as_str() {
                Some("queue") => format!("{} (queued)", number(result["ms"].as_f64(), 4)),
                Some(_) => number(result["ms"].as_f64(), 4),
                None if result.get("error").is_some() => "error".to_owned(),
                None => "–".to_owned(),
            });
            for way in list(&result["others"]) {
                if let (Some(way), Some(why)) = (way["way"].as_str(), way["error"].as_str()) {
                    errors.push(format!("{name}: {library}, {way}: {why}"));
                }
            }
        }
        let slower_than: Vec<_> = list(&row["slower_than"]).filter_map(Value::as_str).collect();
        cells.push(match (row.get("slower_than"), slower_than.join(", ")) {
            (None, _) => "–".to_owned(),
            (Some(_), none) if none.is_empty() => "none".to_owned(),
            (Some(_), some) => some,
        });
        lines.push(line(&cells));
    }
    lines.push(String::new());
    for library in list(&results["libraries"]) {
        let text = |field: &str| library[field].as_str();
        let name = text("library").unwrap_or_default();
        lines.push(match (text("version"), text("absent")) {
            (Some(version), _) => format!("{name}: {version}"),
            (None, why) => format!("{name} is absent: {}", why.unwrap_or("no reason given")),
        });
    }
    lines.extend(list(&results["notes"]).filter_map(Value::as_str).map(str::to_owned));
    lines.extend(errors);
    lines.join("\n")
}

fn line(cells: &[impl AsRef<str>]) -> String {
    cells.iter().fold("|".to_owned(), |mut line, cell| {
        let cell = cell.as_ref();
        let space = if cell.is_empty() { "" } else { " " };
        write!(line, "{space}{cell} |").expect("a string takes everything");
        line
    })
}

fn number(value: Option<f64>, digits: usize) -> String {
    match value {
        Some(value) if value.is_finite() => format!("{value:.digits$}"),
        _ => "–".to_owned(),
    }
}
