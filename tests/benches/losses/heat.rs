//! The results of `--landscape` as a picture: a panel for each element type and pass, columns of
//! the shape across, rows of the shape up, and the fraction of the ceiling as the colour of a mark.

use crate::table::list;
use serde_json::Value;
use std::error::Error;
use std::fmt::Write;

/// The least fraction of the ceiling for each colour. Blue is near the ceiling and red is far from
/// it; colour-blind eyes can tell them apart.
const COLOURS: [(f64, &str); 6] = [
    (0.95, "#2166ac"),
    (0.90, "#67a9cf"),
    (0.85, "#c9dfec"),
    (0.80, "#fbd5bd"),
    (0.75, "#ef8a62"),
    (0.0, "#b2182b"),
];

const DTYPES: [&str; 4] = ["f32", "bf16", "f16", "f64"];
const PASSES: [&str; 3] = ["forward", "forward+backward", "backward"];

// Pixels: the plot of a panel, and the space around it.
const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 52.0;
const ABOVE: f64 = 26.0;
const BELOW: f64 = 34.0;
const RIGHT: f64 = 14.0;
const LEGEND: f64 = 56.0;

/// Decades of columns and of rows.
const COLS: f64 = 6.0;
const ROWS: f64 = 9.0;

/// An SVG of every row that has a ceiling.
pub(crate) fn svg(results: &Value) -> Result<String, Box<dyn Error>> {
    if !list(&results["rows"]).any(|row| row["ratio"].is_f64()) {
        return Err("expected results with a ceiling, got none".into());
    }
    let (panel, line) = (LEFT + WIDTH + RIGHT, ABOVE + HEIGHT + BELOW);
    let (width, height) = (panel * PASSES.len() as f64, LEGEND + line * DTYPES.len() as f64);
    let mut svg = String::new();
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">"
    )?;
    // An opaque background, so that dark letters are legible on any page.
    writeln!(svg, "<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>")?;
    legend(&mut svg)?;
    for (down, dtype) in DTYPES.iter().enumerate() {
        for (across, pass) in PASSES.iter().enumerate() {
            let (left, top) = (panel * across as f64 + LEFT, LEGEND + line * down as f64 + ABOVE);
            axes(&mut svg, left, top, &format!("{dtype}, {pass}"))?;
            let rows = list(&results["rows"])
                .filter(|row| row["dtype"] == **dtype && row["pass"] == **pass);
            for row in rows {
                mark(&mut svg, left, top, row)?;
            }
        }
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn colour(ratio: f64) -> &'static str {
    let found = COLOURS.iter().find(|(from, _)| ratio >= *from);
    found.unwrap_or(&COLOURS[COLOURS.len() - 1]).1
}

/// The meaning of the colours and the marks.
fn legend(svg: &mut String) -> std::fmt::Result {
    writeln!(svg, "<text x=\"{LEFT}\" y=\"24\">ceiling ÷ time</text>")?;
    for (index, (from, colour)) in COLOURS.iter().enumerate() {
        let left = LEFT + 100.0 + 82.0 * index as f64;
        writeln!(
            svg,
            "<rect x=\"{left}\" y=\"13\" width=\"14\" height=\"14\" fill=\"{colour}\" \
             stroke=\"#444\"/>"
        )?;
        let text = if *from > 0.0 { format!("≥ {from:.2}") } else { "less".to_owned() };
        writeln!(svg, "<text x=\"{}\" y=\"24\">{text}</text>", left + 19.0)?;
    }
    for (index, (loss, text)) in
        [("ce", "cross-entropy"), ("kl", "KL divergence"), ("mse", "MSE")].into_iter().enumerate()
    {
        let left = LEFT + 620.0 + 120.0 * index as f64;
        symbol(svg, loss, left, 20.0, "#888")?;
        writeln!(svg, "</g><text x=\"{}\" y=\"24\">{text}</text>", left + 10.0)?;
    }
    Ok(())
}

/// The frame, grid and numbers of a panel, with one line per decade.
fn axes(svg: &mut String, left: f64, top: f64, title: &str) -> std::fmt::Result {
    let (right, bottom) = (left + WIDTH, top + HEIGHT);
    writeln!(svg, "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>", top - 8.0)?;
    for decade in 0..=COLS as i32 {
        let x = left + f64::from(decade) / COLS * WIDTH;
        writeln!(
            svg,
            "<path d=\"M{x:.1} {top}V{bottom}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\">{}</text>",
            bottom + 13.0,
            power(decade)
        )?;
    }
    for decade in 0..=ROWS as i32 {
        let y = bottom - f64::from(decade) / ROWS * HEIGHT;
        writeln!(
            svg,
            "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"10\">{}</text>",
            left - 5.0,
            y + 3.5,
            power(decade)
        )?;
    }
    writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" \
         stroke=\"#444\"/>"
    )?;
    let (middle_x, middle_y) = (left + WIDTH / 2.0, top + HEIGHT / 2.0);
    writeln!(
        svg,
        "<text x=\"{middle_x}\" y=\"{}\" text-anchor=\"middle\" font-size=\"11\">columns</text>",
        bottom + 26.0
    )?;
    let x = left - 38.0;
    writeln!(
        svg,
        "<text x=\"{x}\" y=\"{middle_y}\" text-anchor=\"middle\" font-size=\"11\" \
         transform=\"rotate(-90 {x} {middle_y})\">rows</text>"
    )
}

fn power(decade: i32) -> String {
    match decade {
        0 => "1".to_owned(),
        1 => "10".to_owned(),
        _ => format!("10{}", ["²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"][decade as usize - 2]),
    }
}

/// The mark of a loss, in a group that the caller closes.
fn symbol(svg: &mut String, loss: &str, x: f64, y: f64, colour: &str) -> std::fmt::Result {
    write!(svg, "<g fill=\"{colour}\" stroke=\"#444\" stroke-width=\"0.6\">")?;
    match loss {
        "ce" => write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.2\"/>"),
        "kl" => {
            let (left, top) = (x - 3.8, y - 3.8);
            write!(svg, "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"7.6\" height=\"7.6\"/>")
        }
        _ => write!(svg, "<path d=\"M{x:.1} {:.1}l4.6 8.2h-9.2z\"/>", y - 5.0),
    }
}

/// The mark of a row, which shows its name under the pointer.
fn mark(svg: &mut String, left: f64, top: f64, row: &Value) -> std::fmt::Result {
    let field = |name: &str| row[name].as_f64();
    let (Some(ratio), Some(rows), Some(cols)) = (field("ratio"), field("rows"), field("cols"))
    else {
        return Ok(());
    };
    let part = |value: f64, decades: f64| (value.max(1.0).log10() / decades).min(1.0);
    let (x, y) = (left + part(cols, COLS) * WIDTH, top + HEIGHT - part(rows, ROWS) * HEIGHT);
    let name = row["name"].as_str().unwrap_or_default();
    symbol(svg, row["loss"].as_str().unwrap_or_default(), x, y, colour(ratio))?;
    writeln!(svg, "<title>{name}: {ratio:.3}</title></g>")
}
