//! The results as a picture: the fraction of the ceiling that each library reaches, row by row.

use crate::table::{libraries, list};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::Value;
use std::error::Error;

/// One colour per library, distinct for colour-blind eyes too (Okabe and Ito).
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];

// Pixels.
const WIDTH: u32 = 1000;
const BAR: u32 = 11;
const GAP: u32 = 9;
const NAMES: u32 = 390;
const LEGEND: u32 = 44;
const AXIS: u32 = 48;
const MARGIN: u32 = 48;

/// A row's name and its bars: a library, and its fraction of the ceiling.
struct Group<'a> {
    name: &'a str,
    bars: Vec<(usize, f64)>,
}

/// An SVG of every row that has a ceiling.
pub(crate) fn svg(results: &Value) -> Result<String, Box<dyn Error>> {
    let names: Vec<&str> = std::iter::once("fused-loss").chain(libraries(results)).collect();
    let groups = groups(results, &names);
    if groups.is_empty() {
        return Err("expected results with a ceiling, got none".into());
    }
    let pixels = |group: &Group<'_>| group.bars.len() as u32 * BAR + GAP;
    let height: u32 = groups.iter().map(pixels).sum();

    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (WIDTH, LEGEND + height + AXIS));
    let root = root.into_drawing_area();
    // An opaque background, so that dark letters are legible on any page.
    root.fill(&WHITE)?;
    let font = |size: u32| ("sans-serif", size).into_font().color(&BLACK);

    let mut left = MARGIN as i32;
    for (name, colour) in names.iter().zip(COLOURS) {
        root.draw(&Rectangle::new([(left, 16), (left + 14, 30)], colour.filled()))?;
        let style = font(15).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new((*name).to_owned(), (left + 20, 23), style))?;
        left += 160;
    }

    let (_, plot) = root.split_vertically(LEGEND);
    let mut chart = ChartBuilder::on(&plot)
        .set_label_area_size(LabelAreaPosition::Left, NAMES)
        .set_label_area_size(LabelAreaPosition::Bottom, AXIS)
        .margin_right(MARGIN)
        .build_cartesian_2d(0.0..1.0, 0.0..f64::from(height))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(11)
        .x_label_formatter(&|x| format!("{x:.1}"))
        .x_desc("ceiling ÷ time")
        .label_style(font(13))
        .axis_desc_style(font(15))
        .light_line_style(WHITE)
        .draw()?;

    let mut top = f64::from(height);
    for group in &groups {
        top -= f64::from(GAP) / 2.0;
        let bars = f64::from(BAR) * group.bars.len() as f64;
        let style = font(13).pos(Pos::new(HPos::Right, VPos::Center));
        let (x, y) = chart.backend_coord(&(0.0, top - bars / 2.0));
        root.draw(&Text::new(group.name.to_owned(), (x - 8, y), style))?;
        for &(library, fraction) in &group.bars {
            let bottom = top - f64::from(BAR);
            // A bar that exceeds the ceiling, because both times are noisy, ends at the ceiling.
            let corners = [(0.0, top - 1.0), (fraction.min(1.0), bottom)];
            let colour = COLOURS[library % COLOURS.len()];
            chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            let (x, y) = chart.backend_coord(&(fraction.min(1.0), (top - 1.0 + bottom) / 2.0));
            let style = font(10).pos(Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(format!("{fraction:.2}"), (x + 4, y), style))?;
            top = bottom;
        }
        top -= f64::from(GAP) / 2.0;
    }
    root.present()?;
    // They write to the string until they are dropped.
    drop((chart, plot, root));
    Ok(svg)
}

/// The bars of every row, with ours first.
fn groups<'a>(results: &'a Value, names: &[&str]) -> Vec<Group<'a>> {
    let group = |row: &'a Value| {
        let ceiling = row["ceiling_ms"].as_f64()?;
        let ours = std::iter::once(row["ours_ms"].as_f64());
        let theirs = names[1..].iter().map(|library| row["peers"][library]["ms"].as_f64());
        let times = ours.chain(theirs).enumerate();
        let bars = times.filter_map(|(library, ms)| Some((library, ceiling / ms?))).collect();
        Some(Group { name: row["name"].as_str()?, bars })
    };
    list(&results["rows"]).filter_map(group).collect()
}
