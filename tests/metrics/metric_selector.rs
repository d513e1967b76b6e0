//! `MetricSelector`: a metric in a query of Prometheus, with the labels that the query uses.

use std::collections::BTreeSet;

/// Labels that Prometheus adds to each sample that it scrapes.
const TARGET_LABELS: [&str; 2] = ["job", "instance"];

/// A metric of a query, with the names of the labels by which the query selects or groups it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MetricSelector {
    pub(crate) metric: String,
    pub(crate) labels: BTreeSet<String>,
}

impl MetricSelector {
    /// Returns the metrics of lockgate in a query. All metrics of one query have the labels by
    /// which it groups.
    ///
    /// It understands the queries of this repository: no value of a label has a comma or a brace,
    /// and no label is made by `label_replace`.
    pub(crate) fn parse_query(query: &str) -> Vec<Self> {
        let groupings = query.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
        let groupings: BTreeSet<_> = groupings.flat_map(own_labels).collect();
        query
            .match_indices("lockgate_")
            .map(|(start, _)| {
                let rest = &query[start..];
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let (metric, rest) = rest.split_at(end.unwrap_or(rest.len()));
                let matchers = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
                let labels = own_labels(matchers.unwrap_or_default());
                let labels = labels.chain(groupings.iter().cloned()).collect();
                Self { metric: metric.to_owned(), labels }
            })
            .collect()
    }
}

/// Returns the names in a list of labels or matchers, without those of Prometheus.
fn own_labels(list: &str) -> impl Iterator<Item = String> {
    let names = list.split(',').filter_map(|label| label.split(['=', '!']).next()).map(str::trim);
    names.filter(|name| !name.is_empty() && !TARGET_LABELS.contains(name)).map(str::to_owned)
}

#[test]
fn metrics_and_labels_of_a_query_are_found() {
    let query = r#"sum by (job, lock) (rate(lockgate_a_total{job=~".*",outcome!="x"}[5m]))
        / max(lockgate_b) > 0"#;
    let selector = |metric: &str, labels: &[&str]| MetricSelector {
        metric: metric.to_owned(),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
    };
    let expected =
        [selector("lockgate_a_total", &["lock", "outcome"]), selector("lockgate_b", &["lock"])];
    assert_eq!(MetricSelector::parse_query(query), expected);
}
