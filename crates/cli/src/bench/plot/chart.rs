//! The picture: two charts, one above the other.

use std::fmt::Write as _;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::Series;
use crate::bench::report::{Report, three_digits};
use crate::bench::sizes::short;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 1000;
const TITLE_HEIGHT: i32 = 64;

/// Okabe and Ito's colours, which people who see few colours can tell apart too; the last are darker and lighter ones.
const PALETTE: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
    RGBColor(120, 80, 200),
];
const LIMIT: RGBColor = RGBColor(60, 60, 60);
const TEXT: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(222, 222, 222);
const FINE_GRID: RGBColor = RGBColor(243, 243, 243);

/// Sizes of letters.
const TITLE: u32 = 20;
const CAPTION: u32 = 18;
const SMALL: u32 = 15;
const TINY: u32 = 12;
/// The most names that both charts have room for.
const FEW_NAMES: usize = 9;

/// What a chart shows of a point.
struct Quantity {
    title: &'static str,
    unit: &'static str,
    of: fn(bytes: f64, time_us: f64) -> f64,
    /// Where its curves leave room for their names.
    names: SeriesLabelPosition,
}

const QUANTITIES: [Quantity; 2] = [
    Quantity {
        title: "time (us), lower is better",
        unit: "us",
        of: |_, time| time,
        names: SeriesLabelPosition::UpperLeft,
    },
    Quantity {
        title: "algorithm bandwidth (GB/s), higher is better",
        unit: "GB/s",
        of: |bytes, time| bytes / time / 1e3,
        names: SeriesLabelPosition::LowerRight,
    },
];

/// A place of the picture that has something to say.
struct Spot {
    at: (i32, i32),
    text: String,
}

/// The picture. Every point has its values as a title, which browsers show, and as a class for the page's script.
pub(super) fn svg(report: &Report, series: &[Series]) -> Result<String, String> {
    let mut svg = String::new();
    let spots = paint(&mut svg, report, series).map_err(|error| error.to_string())?;
    let mut extra = String::new();
    for Spot { at: (x, y), text } in spots {
        let text = escape(&text);
        let _ = writeln!(
            extra,
            r#"<circle class="spot" cx="{x}" cy="{y}" r="7" fill="none" pointer-events="all"><title>{text}</title></circle>"#
        );
    }
    let end = svg.rfind("</svg>").ok_or("the picture has no end")?;
    svg.insert_str(end, &extra);
    // A page may show it smaller.
    Ok(svg.replacen("<svg ", r#"<svg font-family="system-ui, sans-serif" "#, 1))
}

/// Text as XML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure = Box<dyn std::error::Error>;

fn paint(svg: &mut String, report: &Report, series: &[Series]) -> Result<Vec<Spot>, Failure> {
    let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let (title, rest) = root.split_vertically(TITLE_HEIGHT);
    let strong = ("sans-serif", TITLE).into_font().color(&TEXT);
    title.draw(&Text::new(report.title(), (16, 14), strong))?;
    let small = ("sans-serif", SMALL).into_font().color(&TEXT);
    title.draw(&Text::new(report.place(), (16, 40), small))?;
    let mut spots = Vec::new();
    for (area, quantity) in rest.split_evenly((2, 1)).iter().zip(&QUANTITIES) {
        spots.extend(paint_chart(area, quantity, series)?);
    }
    root.present()?;
    drop((title, rest));
    Ok(spots)
}

#[allow(clippy::as_conversions, reason = "sizes below 2^53")]
fn paint_chart(area: &Area<'_>, quantity: &Quantity, series: &[Series]) -> Result<Vec<Spot>, Failure> {
    let value = |&(bytes, time): &(usize, f64)| (bytes as f64, (quantity.of)(bytes as f64, time));
    let points = || series.iter().flat_map(|series| series.points.iter().map(value));
    let (x_range, y_range) = (range(points().map(|point| point.0), 2.0), range(points().map(|point| point.1), 10.0));
    let mut chart = ChartBuilder::on(area)
        .caption(quantity.title, ("sans-serif", CAPTION).into_font().color(&TEXT))
        .margin(12)
        .margin_right(24)
        .x_label_area_size(42)
        .y_label_area_size(66)
        .build_cartesian_2d(x_range.log_scale().base(2.0), y_range.log_scale())?;
    chart
        .configure_mesh()
        .x_labels(14)
        .y_labels(10)
        .bold_line_style(GRID)
        .light_line_style(FINE_GRID)
        .axis_style(TEXT)
        .label_style(("sans-serif", SMALL).into_font().color(&TEXT))
        .x_desc("size (bytes)")
        .x_label_formatter(&|bytes| x_label(*bytes))
        .y_label_formatter(&|value| y_label(*value))
        .draw()?;
    let mut spots = Vec::new();
    for series in series {
        let style = Style::of(series);
        let line = series.points.iter().map(value);
        let label = match style.dash {
            None => chart.draw_series(LineSeries::new(line, style.color.stroke_width(2)))?,
            Some((dash, gap)) => {
                chart.draw_series(DashedLineSeries::new(line, dash, gap, style.color.stroke_width(2)))?
            }
        };
        label.label(series.name.clone()).legend(move |(x, y)| {
            // A whole line, or two dashes.
            let gap = if style.dash.is_some() { 3 } else { 0 };
            let piece = |from, to| PathElement::new([(from, 0), (to, 0)], style.color.stroke_width(3));
            EmptyElement::at((x, y)) + piece(0, 10 - gap) + piece(10 + gap, 20)
        });
        if series.color.is_some() {
            let circle = |point| Circle::new(point, 3, style.color.filled());
            chart.draw_series(series.points.iter().map(value).map(circle))?;
        }
        spots.extend(
            series.points.iter().map(|point| Spot {
                at: chart.plotting_area().map_coordinate(&value(point)),
                text: says(series, point),
            }),
        );
    }
    // Many names are smaller, and stand in the first chart only: they would cover the curves.
    let few = series.len() <= FEW_NAMES;
    if few || quantity.names == SeriesLabelPosition::UpperLeft {
        chart
            .configure_series_labels()
            .position(quantity.names.clone())
            .margin(10)
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .label_font(("sans-serif", if few { SMALL } else { TINY }).into_font().color(&TEXT))
            .draw()?;
    }
    Ok(spots)
}

/// How a curve is drawn.
#[derive(Clone, Copy)]
struct Style {
    color: RGBColor,
    /// Lengths of its dashes and of the gaps between them.
    dash: Option<(u32, u32)>,
}

impl Style {
    /// Where there are more curves than colours, a colour comes back with dashes.
    fn of(series: &Series) -> Style {
        match series.color {
            None => Style { color: LIMIT, dash: Some((6, 4)) },
            Some(at) => {
                let dash = (at >= PALETTE.len()).then_some((2, 3));
                Style { color: PALETTE[at % PALETTE.len()], dash }
            }
        }
    }
}

/// A power of two; others, which stand between few sizes, would be no sizes that anybody measures.
#[allow(clippy::as_conversions, reason = "sizes below 2^53")]
fn x_label(bytes: f64) -> String {
    let bytes = bytes.round() as usize;
    if bytes.is_power_of_two() { short(bytes) } else { String::new() }
}

/// A tick's value without what rounding left of it, such as the 4 of 0.30000000000000004.
fn y_label(value: f64) -> String {
    format!("{}", (value * 1e9).round() / 1e9)
}

/// The values of a point, in words.
#[allow(clippy::as_conversions, reason = "sizes below 2^53")]
fn says(series: &Series, &(bytes, time): &(usize, f64)) -> String {
    let values =
        QUANTITIES.each_ref().map(|each| format!("{} {}", three_digits((each.of)(bytes as f64, time)), each.unit));
    format!("{}, {} bytes: {}", series.name, short(bytes), values.join(", "))
}

/// From a power of the base below all values to one above; never empty.
fn range(values: impl Iterator<Item = f64>, base: f64) -> std::ops::Range<f64> {
    let values = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) =
        values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
    if low > high {
        return 1.0..base;
    }
    let (low, high) = (low.log(base).floor(), high.log(base).ceil());
    let (low, high) = if high > low { (low, high) } else { (low - 1.0, low + 1.0) };
    // A little beyond: what stands exactly at an end has no label.
    base.powf(low - 1e-6)..base.powf(high + 1e-6)
}
