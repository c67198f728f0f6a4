//! Charts as SVG: ratios as bars, and growth over the number of keys as lines. Equal numbers give equal bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use anyhow::Context as _;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::markdown::number;
use super::{BRAIN, ETCD, ReportRow};

type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const FONT: &str = "sans-serif";
const BETTER: RGBColor = RGBColor(0x2e, 0x8b, 0x57);
const WORSE: RGBColor = RGBColor(0xc0, 0x50, 0x4d);
const OF_BRAIN: RGBColor = RGBColor(0x1f, 0x5f, 0xbf);
const OF_ETCD: RGBColor = RGBColor(0xd9, 0x82, 0x2b);

const BARS_WIDTH: u32 = 960;
const BAR_HEIGHT: u32 = 20;
const NAMES_WIDTH: u32 = 470;
const RATIOS_WIDTH: u32 = 60;
/// Of a chart of bars around the bars: title, axis and margins.
const CHART_MARGIN: u32 = 70;

const COLUMNS: usize = 2;
const PANEL_WIDTH: u32 = 480;
const PANEL_HEIGHT: u32 = 170;
/// The names of the programs above the panels.
const LEGEND_HEIGHT: u32 = 28;

/// Writes all charts that the numbers are enough for, into a directory that is made if it is absent.
pub(super) fn draw(rows: &[ReportRow], dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    for (name, svg) in charts(rows)? {
        let path = dir.join(name);
        std::fs::write(&path, svg).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Files by name.
fn charts(rows: &[ReportRow]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut charts = BTreeMap::new();
    let sizes: BTreeSet<_> = rows.iter().map(|row| row.by_keys().map(|(keys, _)| keys)).collect();
    for keys in sizes {
        for is_rate in [true, false] {
            let bars: Vec<_> = rows
                .iter()
                .filter(|row| row.unit.is_rate() == is_rate && row.by_keys().map(|(keys, _)| keys) == keys)
                .filter_map(|row| {
                    Some((
                        row.by_keys().map_or(row.name.as_str(), |(_, name)| name),
                        row.ratio(BRAIN)?,
                    ))
                })
                .filter(|(_, ratio)| *ratio > 0.0)
                .collect();
            if bars.is_empty() {
                continue;
            }
            let (kind, title) = match is_rate {
                true => ("rates", "Rates: kubebrain / etcd, more is better"),
                false => ("costs", "Costs and times: kubebrain / etcd, less is better"),
            };
            let (name, title) = match keys {
                None => (format!("{kind}.svg"), title.to_owned()),
                Some(keys) => (
                    format!("{kind}-{keys}-keys.svg"),
                    format!("{title}; {} keys", number(keys as f64)),
                ),
            };
            charts.insert(name, ratios(&title, &bars, is_rate)?);
        }
    }
    let panels = panels(rows);
    if !panels.is_empty() {
        charts.insert("keys.svg".to_owned(), growth(&panels)?);
    }
    Ok(charts)
}

/// A bar for each ratio, from 1 to it.
fn ratios(title: &str, bars: &[(&str, f64)], is_rate: bool) -> anyhow::Result<String> {
    let mut svg = String::new();
    let height = CHART_MARGIN + BAR_HEIGHT * u32::try_from(bars.len())?;
    {
        let root = SVGBackend::with_string(&mut svg, (BARS_WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let values = bars.iter().map(|(_, ratio)| *ratio).chain([1.0]);
        let (left, top) = (decades(values), bars.len() as f64);
        let mut chart = ChartBuilder::on(&root)
            .caption(title, (FONT, 17))
            .margin(6)
            .margin_right(RATIOS_WIDTH)
            .x_label_area_size(24)
            .y_label_area_size(NAMES_WIDTH)
            .build_cartesian_2d(left.clone().log_scale(), 0.0..top)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .light_line_style(TRANSPARENT)
            .x_labels(8)
            .x_label_formatter(&|ratio| format!("{}×", number(*ratio)))
            .label_style((FONT, 12))
            .draw()?;
        for (n, (name, ratio)) in bars.iter().enumerate() {
            // the first one on top
            let middle = top - n as f64 - 0.5;
            let colour = if (*ratio >= 1.0) == is_rate { BETTER } else { WORSE };
            let bar = [(1.0, middle - 0.35), (*ratio, middle + 0.35)];
            chart.draw_series([Rectangle::new(bar, colour.filled())])?;
            let (x, y) = chart.backend_coord(&(left.start, middle));
            text(&root, name, (x - 8, y), HPos::Right)?;
            let (x, y) = chart.backend_coord(&(left.end, middle));
            text(&root, &format!("{ratio:.2}×"), (x + 6, y), HPos::Left)?;
        }
        let one = [(1.0, 0.0), (1.0, top)];
        chart.draw_series([PathElement::new(one, BLACK.stroke_width(1))])?;
        root.present()?;
    }
    Ok(svg)
}

/// A metric over the number of keys.
struct Panel<'a> {
    title: String,
    /// Keys and medians by program.
    lines: [(RGBColor, Vec<(f64, f64)>); 2],
    name: &'a str,
}

/// Metrics that were measured with two numbers of keys or more, in the order of the rows.
fn panels(rows: &[ReportRow]) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for row in rows {
        let Some((keys, name)) = row.by_keys() else {
            continue;
        };
        let at = panels.iter().position(|panel| panel.name == name).unwrap_or_else(|| {
            panels.push(Panel {
                title: format!("{name}, {}", row.unit.name()),
                lines: [(OF_BRAIN, Vec::new()), (OF_ETCD, Vec::new())],
                name,
            });
            panels.len() - 1
        });
        for ((_, line), program) in panels[at].lines.iter_mut().zip([BRAIN, ETCD]) {
            // an axis of powers of ten has no place for 0
            line.extend(
                row.median(program)
                    .filter(|median| *median > 0.0)
                    .map(|median| (keys as f64, median)),
            );
        }
    }
    for (_, line) in panels.iter_mut().flat_map(|panel| &mut panel.lines) {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    panels.retain(|panel| panel.lines.iter().any(|(_, line)| line.len() > 1));
    panels
}

fn growth(panels: &[Panel<'_>]) -> anyhow::Result<String> {
    let mut svg = String::new();
    let rows = panels.len().div_ceil(COLUMNS);
    let size = (
        PANEL_WIDTH * COLUMNS as u32,
        LEGEND_HEIGHT + PANEL_HEIGHT * u32::try_from(rows)?,
    );
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (legend, rest) = root.split_vertically(LEGEND_HEIGHT);
        for (x, colour, name) in [(20, OF_BRAIN, BRAIN), (140, OF_ETCD, ETCD)] {
            legend.draw(&Rectangle::new([(x, 9), (x + 18, 19)], colour.filled()))?;
            text(&legend, name, (x + 24, 14), HPos::Left)?;
        }
        for (area, panel) in rest.split_evenly((rows, COLUMNS)).iter().zip(panels) {
            draw_panel(area, panel)?;
        }
        root.present()?;
    }
    Ok(svg)
}

fn draw_panel(area: &PlotArea<'_>, panel: &Panel<'_>) -> anyhow::Result<()> {
    let points = || panel.lines.iter().flat_map(|(_, line)| line.iter().copied());
    let (keys, values) = (points().map(|point| point.0), points().map(|point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (FONT, 13))
        .margin(4)
        .margin_right(24)
        .x_label_area_size(22)
        .y_label_area_size(64)
        .build_cartesian_2d(decades(keys).log_scale(), decades(values).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(4)
        .y_labels(4)
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|value| number(*value))
        .label_style((FONT, 11))
        .draw()?;
    for (colour, line) in &panel.lines {
        chart.draw_series([PathElement::new(line.clone(), colour.stroke_width(2))])?;
        chart.draw_series(line.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
    }
    Ok(())
}

/// The powers of ten around positive values.
fn decades(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let low = values.clone().fold(f64::MAX, f64::min).log10().floor();
    let high = values.fold(f64::MIN_POSITIVE, f64::max).log10().ceil();
    10_f64.powf(low)..10_f64.powf(high.max(low + 1.0))
}

fn text(area: &PlotArea<'_>, text: &str, at: (i32, i32), side: HPos) -> anyhow::Result<()> {
    let style = TextStyle::from((FONT, 13).into_font()).pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(text.to_owned(), at, style))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Report, Unit};

    fn report() -> Report {
        let mut report = Report::default();
        for (program, factor) in [("kubebrain", 2.0), ("etcd", 1.0)] {
            report.add("updates", Unit::PerSecond, program, 10_000.0 * factor);
            report.add("updates: server CPU", Unit::MicrosEach, program, 50.0 / factor);
            report.add("nothing", Unit::Mib, program, 0.0);
            for keys in [1_000, 1_000_000] {
                let name = format!("{keys} keys: start");
                report.add(&name, Unit::Seconds, program, f64::from(keys) / factor / 1e6);
            }
            report.add("1000 keys: once", Unit::Seconds, program, factor);
        }
        report
    }

    #[test]
    fn charts_show_each_ratio_and_growth() {
        let report = report();
        let charts = charts(&report.0).unwrap();
        let names: Vec<_> = charts.keys().map(String::as_str).collect();
        let expected = [
            "costs-1000-keys.svg",
            "costs-1000000-keys.svg",
            "costs.svg",
            "keys.svg",
            "rates.svg",
        ];
        assert_eq!(names, expected);
        assert!(charts["rates.svg"].contains("2.00×") && charts["costs.svg"].contains("0.50×"));
        assert!(!charts["costs.svg"].contains("nothing"));
        assert!(charts["keys.svg"].contains("start, s") && !charts["keys.svg"].contains("once"));
    }

    #[test]
    fn equal_numbers_give_equal_and_small_files() {
        let (first, second) = (charts(&report().0).unwrap(), charts(&report().0).unwrap());
        assert_eq!(first, second);
        assert!(first.values().all(|svg| svg.len() < 32 << 10));
    }

    #[test]
    fn axes_reach_from_power_to_power() {
        let reach = |values: &[f64]| {
            let Range { start, end } = decades(values.iter().copied());
            (start.log10().round(), end.log10().round())
        };
        assert_eq!(reach(&[0.5, 3.0]), (-1.0, 1.0));
        assert_eq!(reach(&[1.0]), (0.0, 1.0));
        assert_eq!(reach(&[0.004, 20.0]), (-3.0, 2.0));
    }
}
