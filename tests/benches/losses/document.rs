//! A Markdown document whose tables name shapes and show their measured figures. These tables are
//! also the list of shapes: `--document` measures them and writes the figures into the document.
//!
//! A table belongs to the list if the title of its first column is `shape`. The titles of its other
//! columns say what they show: `ours µs`, `ceiling µs`, `TB/s`, `ceiling ÷ ours`, or `NAME µs` for
//! another library. One line, which begins with [`MEASURED`], names the device and the day.

use crate::Result;
use crate::shapes::Shape;
use crate::table::list;
use serde_json::Value;
use std::collections::HashSet;
use std::time::Duration;

/// The title of the first column.
const SHAPE: &str = "shape";

/// The beginning of the line that names the device and the day.
const MEASURED: &str = "Measured:";

const UNKNOWN: &str = "–";

/// A document that has been read.
pub(crate) struct Document {
    lines: Vec<Line>,
}

enum Line {
    Text(String),
    /// The line that names the device and the day.
    Measured,
    Row {
        shape: Shape,
        columns: Vec<Column>,
    },
}

/// What a column shows.
#[derive(Clone)]
enum Column {
    Ours,
    Ceiling,
    Bandwidth,
    Ratio,
    /// The time of the library with this name.
    Peer(String),
}

impl Document {
    /// Parses the text of a document; an error names the shape or the title that is unknown.
    pub(crate) fn new(text: &str) -> Result<Self> {
        let mut lines = Vec::new();
        let mut columns: Option<Vec<Column>> = None;
        let mut seen = HashSet::new();
        for line in text.lines() {
            let cells = cells(line);
            match (&columns, cells.as_slice()) {
                (_, []) => columns = None,
                (None, [SHAPE, titles @ ..]) => {
                    let of_titles: Result<_> = titles.iter().map(|title| column(title)).collect();
                    columns = Some(of_titles?);
                }
                (Some(columns), [first, ..]) if !is_rule(first) => {
                    let shape = shape(first)?;
                    if !seen.insert(shape.to_string()) {
                        return Err(format!("'{shape}' is in the document twice").into());
                    }
                    lines.push(Line::Row { shape, columns: columns.clone() });
                    continue;
                }
                _ => {}
            }
            let is_measured = line.starts_with(MEASURED);
            lines.push(if is_measured { Line::Measured } else { Line::Text(line.to_owned()) });
        }
        let measured = lines.iter().filter(|line| matches!(line, Line::Measured)).count();
        match (seen.is_empty(), measured) {
            (true, _) => Err(format!("expected a table with a first column '{SHAPE}'").into()),
            (_, 1) => Ok(Document { lines }),
            (_, got) => Err(format!("expected one line '{MEASURED} …', got {got}").into()),
        }
    }

    /// The shapes of all tables, in order.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        self.rows().map(|(shape, _)| shape.clone()).collect()
    }

    /// Whether the table of this shape has a column for another library.
    pub(crate) fn compares(&self, shape: &Shape) -> bool {
        let is_peer = |column: &Column| matches!(column, Column::Peer(_));
        self.rows().any(|(of, columns)| of == shape && columns.iter().any(is_peer))
    }

    fn rows(&self) -> impl Iterator<Item = (&Shape, &[Column])> {
        self.lines.iter().filter_map(|line| match line {
            Line::Row { shape, columns } => Some((shape, columns.as_slice())),
            Line::Text(_) | Line::Measured => None,
        })
    }

    /// The text with the figures of these results in place of its own; an error names a shape for
    /// which the results have no row.
    pub(crate) fn filled(&self, results: &Value) -> Result<String> {
        let mut text = String::new();
        for line in &self.lines {
            match line {
                Line::Text(line) => text.push_str(line),
                Line::Measured => text.push_str(&measured(results)?),
                Line::Row { shape, columns } => {
                    let name = shape.to_string();
                    let row = list(&results["rows"])
                        .find(|row| row["name"] == *name)
                        .ok_or_else(|| format!("the results have no row for '{name}'"))?;
                    text.push_str(&format!("| `{name}` |"));
                    for column in columns {
                        text.push_str(&format!(" {} |", column.cell(row)));
                    }
                }
            }
            text.push('\n');
        }
        Ok(text)
    }
}

impl Column {
    /// The figure of this column in a row of the results.
    fn cell(&self, row: &Value) -> String {
        let ours = row["ours_ms"].as_f64();
        let (value, digits) = match self {
            Column::Ours => (ours.map(|ms| ms * 1e3), 1),
            Column::Ceiling => (row["ceiling_ms"].as_f64().map(|ms| ms * 1e3), 1),
            Column::Bandwidth => {
                (row["bytes"].as_f64().zip(ours).map(|(bytes, ms)| bytes / ms / 1e9), 2)
            }
            Column::Ratio => (row["ratio"].as_f64(), 2),
            Column::Peer(name) => (row["peers"][name]["ms"].as_f64().map(|ms| ms * 1e3), 1),
        };
        let is_queued =
            matches!(self, Column::Peer(name) if row["peers"][name]["timed"] == "queue");
        let suffix = if is_queued { " (queued)" } else { "" };
        value.map_or(UNKNOWN.to_owned(), |value| format!("{value:.digits$}{suffix}"))
    }
}

/// The cells of a line of a table; none for any other line.
fn cells(line: &str) -> Vec<&str> {
    let Some(inner) = line.trim().strip_prefix('|') else { return Vec::new() };
    inner.strip_suffix('|').unwrap_or(inner).split('|').map(str::trim).collect()
}

/// Whether a cell belongs to the line below the titles.
fn is_rule(cell: &str) -> bool {
    cell.contains('-') && cell.trim_matches(['-', ':']).is_empty()
}

fn column(title: &str) -> Result<Column> {
    Ok(match (title, title.strip_suffix(" µs")) {
        ("TB/s", _) => Column::Bandwidth,
        ("ceiling ÷ ours", _) => Column::Ratio,
        (_, Some("ours")) => Column::Ours,
        (_, Some("ceiling")) => Column::Ceiling,
        (_, Some(library)) => Column::Peer(library.to_owned()),
        _ => {
            return Err(format!(
                "expected a column 'TB/s', 'ceiling ÷ ours', 'ours µs', 'ceiling µs' or the µs of \
                 another library, got '{title}'"
            )
            .into());
        }
    })
}

fn shape(cell: &str) -> Result<Shape> {
    let text = cell.strip_prefix('`').and_then(|cell| cell.strip_suffix('`'));
    let text = text.ok_or_else(|| format!("expected a shape in backquotes, got '{cell}'"))?;
    Ok(text.parse()?)
}

/// The line that names the device and the day of the results.
fn measured(results: &Value) -> Result<String> {
    let text = |field: &str| results[field].as_str().ok_or_else(|| missing(field));
    let samples = results["samples"].as_u64().ok_or_else(|| missing("samples"))?;
    let (device, date) = (text("device")?, text("date")?);
    Ok(format!("{MEASURED} {device}, {date}, medians of {samples} samples."))
}

fn missing(field: &str) -> String {
    format!("the results have no '{field}': expected those of --landscape")
}

/// The UTC date at a time after the beginning of 1970: `2026-11-30`.
pub(crate) fn date(since_1970: Duration) -> String {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut days = since_1970.as_secs() / 86_400;
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, days + 1)
}
