//! Plots as SVG: lines over a number, or bars by name. Published values are hollow, and stand-ins dashed.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Figure, FigureClass, number};

const SIZE: (u32, u32) = (760, 420);
/// Maximum number of letters of a name to the left of a bar, and pixels per letter.
const NAME: usize = 52;
const LETTER: f64 = 6.2;
/// Maximum number of bars with values beside them.
const WITH_VALUES: usize = 24;
/// Colors that are distinguishable with color blindness.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
];

/// Spacing of the x axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Equal steps.
    Linear,
    /// Equal factors; all values are above 0.
    Logarithmic,
    /// Names, numbered from 0 by x values. Drawn as horizontal bars, one name below the other.
    Names(Vec<String>),
}

/// Values of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// The origin of the values.
    pub class: FigureClass,
    /// Pairs of x and y.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Creates a series of the values of `figures` over `xs`.
    pub fn of<'f>(
        name: impl Into<String>,
        class: FigureClass,
        xs: impl IntoIterator<Item = f64>,
        figures: impl IntoIterator<Item = &'f Figure>,
    ) -> Series {
        let values = figures.into_iter().map(|figure| figure.value);
        Series {
            name: name.into(),
            class,
            points: xs.into_iter().zip(values).collect(),
        }
    }

    /// Creates a series of the values of `figures`, one for each name of the x axis.
    pub fn bars<'f>(
        name: impl Into<String>,
        class: FigureClass,
        figures: impl IntoIterator<Item = &'f Figure>,
    ) -> Series {
        Series::of(name, class, (0..).map(f64::from), figures)
    }

    /// Creates bars of the further value `more` of `figures`, 0 where it is missing.
    pub fn bars_of(name: &str, class: FigureClass, figures: &[Figure], more: &str) -> Series {
        let mut series = Series::bars(name, class, figures);
        for (point, figure) in series.points.iter_mut().zip(figures) {
            point.1 = figure.more.get(more).copied().unwrap_or(0.0);
        }
        series
    }
}

/// A plot, whose y axis starts at 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// Quantity and unit of the x axis.
    pub x: String,
    /// Spacing of the x axis.
    pub scale: Scale,
    /// Quantity and unit of the y axis.
    pub y: String,
    /// The values.
    pub series: Vec<Series>,
}

impl Plot {
    /// Returns the plot as an SVG element; an empty one if there is nothing to draw.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut out = String::new();
        let drawn = self.draw(SVGBackend::with_string(&mut out, SIZE).into_drawing_area());
        match drawn {
            Ok(()) => out,
            Err(error) => {
                format!("<svg xmlns=\"http://www.w3.org/2000/svg\"><!-- {error} --></svg>")
            }
        }
    }

    fn draw(&self, area: DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error + '_>> {
        area.fill(&WHITE)?;
        let points = || self.series.iter().flat_map(|series| &series.points);
        let highest = points().map(|point| point.1).fold(0.0, f64::max);
        if points().any(|(x, y)| !x.is_finite() || !y.is_finite()) || highest <= 0.0 {
            return Err("nothing to draw".into());
        }
        let y = 0.0..highest * 1.08;
        let (least, most) = points().fold((f64::MAX, f64::MIN), |(least, most), point| {
            (least.min(point.0), most.max(point.0))
        });
        match &self.scale {
            Scale::Linear => self.lines(&area, least..most.max(least + 1e-9), y, &|x| axis(*x))?,
            Scale::Logarithmic if least <= 0.0 => {
                return Err("values of 0 on a logarithmic axis".into());
            }
            Scale::Logarithmic => {
                let range = (least..most.max(least * 1.001)).log_scale().base(2.0);
                self.lines(&area, range, y, &|x| axis(*x))?;
            }
            Scale::Names(names) => self.bars(&area, names, highest)?,
        }
        area.present()?;
        Ok(())
    }

    fn lines<X>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        x: X,
        y: std::ops::Range<f64>,
        label: &dyn Fn(&f64) -> String,
    ) -> Result<(), Box<dyn Error>>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = self
            .frame(area)
            .build_cartesian_2d(x, y)
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(label)
            .y_label_formatter(&|y| axis(*y))
            .draw()
            .map_err(|error| error.to_string())?;
        for (place, series) in self.series.iter().enumerate() {
            let color = COLORS[place % COLORS.len()];
            let points = series.points.clone();
            let line = color.stroke_width(2);
            let drawn = match series.class {
                FigureClass::StandIn => {
                    chart.draw_series(DashedLineSeries::new(points, 6, 4, line))
                }
                _ => chart.draw_series(LineSeries::new(points, line)),
            };
            drawn
                .map_err(|error| error.to_string())?
                .label(self.legend(series))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], line));
            let dot = match series.class {
                FigureClass::Published => line,
                _ => color.filled(),
            };
            // More dots would hide the line.
            if series.points.len() <= 40 {
                let dots = series
                    .points
                    .iter()
                    .map(|&point| Circle::new(point, 3, dot));
                chart.draw_series(dots).map_err(|error| error.to_string())?;
            }
        }
        finish(SeriesLabelPosition::LowerRight, &mut chart)
    }

    /// Draws horizontal bars one below the other, with names to their left and values at their ends.
    fn bars(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        names: &[String],
        highest: f64,
    ) -> Result<(), Box<dyn Error>> {
        let last = names.len() as f64 - 1.0;
        let names: Vec<String> = names.iter().map(|name| shortened(name)).collect();
        let longest = names.iter().map(|name| name.chars().count()).max();
        let left = 40.0 + LETTER * longest.unwrap_or(0) as f64;
        let mut chart = self
            .frame(area)
            .set_label_area_size(LabelAreaPosition::Left, left as u32)
            // Space for the values.
            .build_cartesian_2d(0.0..highest * 1.15, -0.5..last + 0.5)
            .map_err(|error| error.to_string())?;
        let name = |y: &f64| {
            let row = last - y;
            let is_name = (row - row.round()).abs() < 1e-6 && row > -0.5;
            let name = names.get(row.round() as usize).filter(|_| is_name);
            name.cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(WHITE)
            .x_labels(5)
            .y_labels(2 * names.len() + 1)
            .x_desc(&self.y)
            .y_desc(&self.x)
            .x_label_formatter(&|x| axis(*x))
            .y_label_formatter(&name)
            .draw()
            .map_err(|error| error.to_string())?;
        let width = 0.8 / self.series.len() as f64;
        for (place, series) in self.series.iter().enumerate() {
            let color = COLORS[place % COLORS.len()];
            let style = match series.class {
                FigureClass::Measured | FigureClass::NotRun => color.filled(),
                FigureClass::StandIn => color.mix(0.45).filled(),
                FigureClass::Published => color.stroke_width(2),
            };
            let top = |x: f64| last - x + 0.4 - width * place as f64;
            let bars = series.points.iter().map(|&(x, value)| {
                Rectangle::new([(0.0, top(x)), (value, top(x) - width * 0.94)], style)
            });
            chart
                .draw_series(bars)
                .map_err(|error| error.to_string())?
                .label(self.legend(series))
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], style));
            if names.len() * self.series.len() > WITH_VALUES {
                continue;
            }
            let values = series.points.iter().map(|&(x, value)| {
                let text = Text::new(number(value), (5, -6), ("sans-serif", 12));
                EmptyElement::at((value, top(x) - width * 0.47)) + text
            });
            chart
                .draw_series(values)
                .map_err(|error| error.to_string())?;
        }
        finish(SeriesLabelPosition::LowerRight, &mut chart)
    }

    fn frame<'a, 'b>(
        &self,
        area: &'a DrawingArea<SVGBackend<'b>, Shift>,
    ) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
        let mut builder = ChartBuilder::on(area);
        builder
            .margin(12)
            .caption(&self.title, ("sans-serif", 17))
            .set_label_area_size(LabelAreaPosition::Left, 68)
            .set_label_area_size(LabelAreaPosition::Bottom, 42);
        builder
    }

    fn legend(&self, series: &Series) -> String {
        match series.class {
            FigureClass::Measured | FigureClass::NotRun => series.name.clone(),
            class => format!("{} ({})", series.name, class.word()),
        }
    }
}

/// Truncates a name to what fits to the left of a bar.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}\u{2026}", name[..end].trim_end()),
        None => name.to_owned(),
    }
}

/// Formats a number at an axis.
fn axis(value: f64) -> String {
    let text = number(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Draws the legend.
fn finish<'a, 'b, X>(
    place: SeriesLabelPosition,
    chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, RangedCoordf64>>,
) -> Result<(), Box<dyn Error>>
where
    X: Ranged<ValueType = f64>,
    'b: 'a,
{
    chart
        .configure_series_labels()
        .position(place)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 205, 212))
        .draw()
        .map_err(|error| error.to_string())?;
    Ok(())
}
