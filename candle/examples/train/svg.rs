//! Two curves in one picture.

use std::fmt::Write;

const WIDTH: f32 = 640.0;
const HEIGHT: f32 = 360.0;
const MARGIN: f32 = 48.0;
/// The first curve is broad and pale, so that the second is visible on top of it.
const STYLES: [&str; 2] = ["stroke='#f2a65a' stroke-width='5'", "stroke='#1b4965'"];

/// Draws two curves with the same number of values, the first value of each at the left edge.
pub(crate) fn draw(curves: [(&str, &[f32]); 2], across: &str, up: &str) -> String {
    let steps = curves[0].1.len();
    let all = curves.iter().flat_map(|(_, values)| *values);
    let top = all.copied().fold(0.0, f32::max).ceil();
    let x = |at: f32| MARGIN + at / steps as f32 * (WIDTH - 2.0 * MARGIN);
    let y = |value: f32| HEIGHT - MARGIN - value / top * (HEIGHT - 2.0 * MARGIN);

    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' \
         font-family='sans-serif' font-size='12' fill='none'>\n\
         <rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>\n"
    );
    let text = |x: f32, y: f32, anchor: &str, text: &str| {
        format!("<text x='{x}' y='{y}' text-anchor='{anchor}' fill='black'>{text}</text>\n")
    };
    for tick in 0..=4 {
        let (step, value) = (steps * tick / 4, top * tick as f32 / 4.0);
        svg += &text(x(step as f32), HEIGHT - MARGIN + 18.0, "middle", &step.to_string());
        svg += &text(MARGIN - 6.0, y(value) + 4.0, "end", &value.to_string());
        let (left, right) = (MARGIN, WIDTH - MARGIN);
        let _ = writeln!(svg, "<path stroke='#ddd' d='M{left} {0}H{right}'/>", y(value));
    }
    svg += &text(WIDTH / 2.0, HEIGHT - 8.0, "middle", across);
    svg += &text(MARGIN, MARGIN - 16.0, "end", up);
    for (at, ((name, values), style)) in curves.into_iter().zip(STYLES).enumerate() {
        let points = values.iter().enumerate();
        let points = points.map(|(at, &value)| format!("{:.1},{:.1}", x(at as f32), y(value)));
        let points = points.collect::<Vec<_>>().join(" ");
        let _ = writeln!(svg, "<polyline {style} points='{points}'/>");
        let line = MARGIN + 18.0 + 16.0 * at as f32;
        let _ = writeln!(svg, "<path {style} d='M430 {line}h30'/>");
        svg += &text(468.0, line + 4.0, "start", name);
    }
    svg + "</svg>\n"
}
