//! The page of metrics and alerts.

use anyhow::Context as _;
use prometheus::core::Collector;
use prometheus::proto::MetricType;
use serde_json::Value;

use crate::markdown::{code, codes, prose, table};
use crate::template::fill;

/// The sections of a brain's metrics, in the order of the page.
const SECTIONS: [&str; 12] = [
    "Server and leader",
    "Store",
    "Disk and log",
    "Leases",
    "Clients and memory",
    "Members",
    "TLS",
    "TiKV",
    "Archive",
    "Import",
    "Process",
    "Always 0",
];

const RULES: &str = include_str!("../../manifests/monitoring/rules.yaml");

pub(crate) fn page() -> anyhow::Result<String> {
    fill(
        include_str!("../templates/metrics.md"),
        [
            ("brain", of_brain()?),
            ("operator", rows(&operator::metrics())?),
            ("alerts", alerts()?),
        ],
    )
}

fn of_brain() -> anyhow::Result<String> {
    let mut registered = brain::server::metrics();
    let mut page = String::new();
    for section in SECTIONS {
        let own = registered.extract_if(.., |metric| metric.section == section);
        let collectors: Vec<_> = own.map(|metric| metric.collector).collect();
        page.push_str(&format!("### {section}\n\n{}\n", rows(&collectors)?));
    }
    let others = registered.first().map(|metric| metric.section);
    anyhow::ensure!(others.is_none(), "a section without a place on the page: {others:?}");
    Ok(page)
}

/// Returns the table of metrics, by their names.
fn rows(collectors: &[Box<dyn Collector>]) -> anyhow::Result<String> {
    let rows = collectors.iter().map(|collector| row(collector.as_ref()));
    let mut rows = rows.collect::<anyhow::Result<Vec<_>>>()?;
    rows.sort_unstable();
    Ok(table(["metric", "type", "labels", "meaning"], rows))
}

fn row(collector: &dyn Collector) -> anyhow::Result<[String; 4]> {
    let described = collector.desc().into_iter().next().context("a metric has a name")?;
    let family = collector.collect().into_iter().next();
    let kind = match family
        .with_context(|| format!("{} has no type", described.fq_name))?
        .get_field_type()
    {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        other => anyhow::bail!("{} is a {other:?}", described.fq_name),
    };
    Ok([
        code(&described.fq_name),
        kind.to_owned(),
        codes(&described.variable_labels),
        prose(&described.help),
    ])
}

fn alerts() -> anyhow::Result<String> {
    let rules: Value = serde_yaml::from_str(RULES).context("read the alerts")?;
    let groups = rules["groups"].as_array().into_iter().flatten();
    let rules = groups.flat_map(|group| group["rules"].as_array().into_iter().flatten());
    let rows = rules.map(|rule| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let lasts = match rule["for"].as_str() {
            None | Some("0m") => "at once".to_owned(),
            Some(time) => time.to_owned(),
        };
        // A label of an alert is a placeholder here.
        let summary = text(&rule["annotations"]["summary"]);
        let summary = summary.replace("{{ $labels.", "<").replace(" }}", ">");
        [
            code(&text(&rule["alert"])),
            prose(&summary),
            lasts,
            text(&rule["labels"]["severity"]),
        ]
    });
    Ok(table(["alert", "fires when", "for", "severity"], rows))
}
