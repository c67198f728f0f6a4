use super::*;

/// Two requests of up to 0.1 s and two of up to 0.2 s were made of pods; one of up to 0.1 s of nodes.
const TEXT: &str = r#"# HELP request_seconds Latency.
# TYPE request_seconds histogram
request_seconds_bucket{verb="GET",resource="pods",le="0.1"} 2
request_seconds_bucket{verb="GET",resource="pods",le="0.2"} 4
request_seconds_bucket{verb="GET",resource="pods",le="+Inf"} 4
request_seconds_sum{verb="GET",resource="pods"} 0.5
request_seconds_count{verb="GET",resource="pods"} 4
request_seconds_bucket{verb="GET",resource="nodes",le="0.1"} 1
request_seconds_bucket{verb="GET",resource="nodes",le="0.2"} 1
request_seconds_bucket{verb="GET",resource="nodes",le="+Inf"} 1
request_seconds_sum{verb="GET",resource="nodes"} 0.1
size_bytes{id="etcd-0"} 1.5e+06
size_bytes{id="etcd-1"} 500000 1700000000000
watches_total 7
"#;

fn by_resource(labels: &BTreeMap<String, String>) -> Option<String> {
    labels.get("resource").cloned()
}

fn histogram(buckets: &[(f64, f64)]) -> Histogram {
    Histogram {
        buckets: buckets.to_vec(),
        sum: 0.0,
    }
}

#[test]
fn samples_are_read_with_their_labels() {
    let read = sample(r#"errors{text="a \"b\", \\c\n}",code="5"} 3"#).unwrap();
    let labels = [("code", "5"), ("text", "a \"b\", \\c\n}")];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(read.labels, BTreeMap::from(labels));
    assert_eq!((read.name.as_str(), read.value), ("errors", 3.0));
    for bad in ["errors", "errors{a=\"b} 3", "errors three", "errors{a} 3"] {
        assert_eq!(sample(bad), None, "{bad}");
        assert!(Scrape::parse(bad).is_err());
    }
}

#[test]
fn series_of_a_name_are_added_up() {
    let scrape = Scrape::parse(TEXT).unwrap();
    assert_eq!(scrape.sum("size_bytes"), 2_000_000.0);
    assert_eq!(scrape.sum("watches_total"), 7.0);
    assert_eq!(scrape.sum("watches"), 0.0);
}

#[test]
fn histograms_are_added_up_by_key() {
    let scrape = Scrape::parse(TEXT).unwrap();
    let each = scrape.histograms("request_seconds", by_resource);
    let buckets = |resource: &str| each[resource].buckets.clone();
    assert_eq!(buckets("pods"), [(0.1, 2.0), (0.2, 4.0), (f64::INFINITY, 4.0)]);
    assert_eq!(buckets("nodes"), [(0.1, 1.0), (0.2, 1.0), (f64::INFINITY, 1.0)]);
    let all = &scrape.histograms("request_seconds", |_| Some(()))[&()];
    assert_eq!(all.buckets, [(0.1, 3.0), (0.2, 5.0), (f64::INFINITY, 5.0)]);
    assert_eq!(all.mean(), Some(0.12));
    let none = scrape.histograms("request_seconds", |labels| labels.get("group").cloned());
    assert!(none.is_empty());
}

#[test]
fn quantiles_are_spread_within_a_bucket() {
    let of_ten = histogram(&[(0.1, 5.0), (0.2, 9.0), (f64::INFINITY, 10.0)]);
    assert_eq!(of_ten.quantile(0.5), Some(0.1));
    assert_eq!(of_ten.quantile(0.25), Some(0.05));
    assert!((of_ten.quantile(0.7).unwrap() - 0.15).abs() < 1e-9);
    // above the last finite bound
    assert_eq!(of_ten.quantile(0.99), Some(0.2));
    assert_eq!(histogram(&[(0.1, 0.0), (f64::INFINITY, 0.0)]).quantile(0.5), None);
    assert_eq!(Histogram::default().quantile(0.5), None);
    assert_eq!(Histogram::default().mean(), None);
    // all in one bucket that is not the first
    let late = histogram(&[(0.1, 0.0), (0.2, 0.0), (0.4, 8.0), (f64::INFINITY, 8.0)]);
    assert!((late.quantile(0.5).unwrap() - 0.3).abs() < 1e-9);
}

#[test]
fn growth_is_what_came_between_two_scrapes() {
    let before = Scrape::parse(TEXT).unwrap();
    let later = TEXT
        .replace("pods\",le=\"0.2\"} 4", "pods\",le=\"0.2\"} 6")
        .replace("pods\",le=\"+Inf\"} 4", "pods\",le=\"+Inf\"} 7")
        .replace("pods\"} 0.5", "pods\"} 9.5");
    let new = "request_seconds_bucket{resource=\"leases\",le=\"+Inf\"} 2\nrequest_seconds_sum{resource=\"leases\"} 4\n";
    let after = Scrape::parse(&(later + new)).unwrap();
    let grown = growth(&before, &after, "request_seconds", by_resource);
    // nodes did not grow
    assert_eq!(grown.keys().collect::<Vec<_>>(), ["leases", "pods"]);
    assert_eq!(grown["pods"].buckets, [(0.1, 0.0), (0.2, 2.0), (f64::INFINITY, 3.0)]);
    assert_eq!(grown["pods"].mean(), Some(3.0));
    assert_eq!(grown["leases"].mean(), Some(2.0));
}
