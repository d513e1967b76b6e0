//! The metrics of both demos: the pages themselves, and a real Prometheus that scrapes them.
//!
//! `prometheus` and `promtool` have to be on `PATH`; `cargo xtask test` installs them (Debian: the
//! package `prometheus`).

#[path = "metrics/metric_selector.rs"]
mod metric_selector;
#[path = "metrics/prometheus_server.rs"]
mod prometheus_server;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use lockgate::Key;
use lockgate_tests::{
    DemoProcess, RawConnection, WebFramework, connect_with_long_timeout, eventually, shared_server,
};
use serde_json::Value;

use self::{
    metric_selector::MetricSelector,
    prometheus_server::{PrometheusServer, complaints_of_promtool, is_without_prometheus},
};

/// Both demos on one namespace of a Redis.
struct MeasuredDemos {
    demos: [DemoProcess; 2],
    store_url: String,
}

/// Responses that the clients got.
#[derive(Debug, Default)]
struct ClientCounts {
    /// 429 of the limited route.
    over_quota: u32,
    /// 200 of locked routes.
    granted: u32,
    /// 409 and 202 of locked routes.
    busy: u32,
    /// 202 whose job is done.
    done: u32,
}

impl MeasuredDemos {
    async fn start() -> Self {
        let namespace = uuid::Uuid::new_v4().simple().to_string();
        let store_url = shared_server().await.url(&namespace);
        let axum = DemoProcess::start(WebFramework::Axum, &store_url).await;
        let actix = DemoProcess::start(WebFramework::Actix, &store_url).await;
        Self { demos: [axum, actix], store_url }
    }

    /// Sends requests to both demos until each has refused one for its quota and deferred one, and
    /// waits until the deferred ones are done.
    async fn drive_traffic(&self) -> ClientCounts {
        let mut counts = ClientCounts::default();
        let store = connect_with_long_timeout(&self.store_url).await;
        let request = store.lock(Key::path_param("id", "7")).wait(Duration::from_secs(30));
        let guard = request.acquire().await.expect("the lock is free");
        let mut accepted = Vec::new();
        for demo in &self.demos {
            let refused = async || demo.get("/limited").send().await.status == 429;
            eventually("the quota to be spent", refused).await;
            counts.over_quota += 1;
            let _ = demo.post("/orders/7/pay?ms=0").send().await.expect_status(409);
            let _ = demo.post("/orders/8/pay?ms=0").send().await.expect_status(200);
            let refund = demo.post("/orders/7/refund?ms=1").send().await.expect_status(202);
            accepted.push((demo, refund.header("location").to_owned()));
            counts.busy += 2;
            counts.granted += 1;
        }
        guard.release().await;
        for (demo, location) in accepted {
            eventually("the refund to be done", async || {
                demo.get(&location).header("prefer", "wait=1").send().await.json()["state"]
                    == "done"
            })
            .await;
            counts.done += 1;
        }
        counts
    }

    /// Returns the pages of metrics of both demos.
    async fn metrics_pages(&self) -> Vec<String> {
        let mut pages = Vec::new();
        for demo in &self.demos {
            let page = demo.get("/metrics").send().await.expect_status(200);
            assert!(page.header("content-type").starts_with("text/plain; version=0.0.4"));
            pages.push(page.text());
        }
        pages
    }
}

/// Pages of metrics are for operators on the machine; both demos refuse what a proxy on it sends.
#[tokio::test]
async fn metrics_page_is_for_this_machine_alone() {
    for framework in [WebFramework::Axum, WebFramework::Actix] {
        let demo = DemoProcess::start(framework, "memory").await;
        let _ = demo.get("/metrics").send().await.expect_status(200);
        for header in ["forwarded", "x-forwarded-for", "x-forwarded-proto"] {
            let refused = demo.get("/metrics").header(header, "x").send().await;
            let _ = refused.expect_status(403).problem_document();
        }
        for (host, status) in [("localhost", "200"), ("[::1]:80", "200"), ("example.com", "403")] {
            let mut connection = RawConnection::connect(demo.addr).await;
            let head =
                format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
            connection.write(head).await;
            let answer = connection.read_to_end().await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
        }
    }
}

#[tokio::test]
async fn prometheus_shows_what_the_clients_saw() {
    if is_without_prometheus() {
        println!("Skipped: install Prometheus (Debian: the package prometheus).");
        return;
    }
    let measured = MeasuredDemos::start().await;
    let counts = measured.drive_traffic().await;
    for page in measured.metrics_pages().await {
        assert_eq!(complaints_of_promtool(&page), "", "{page}");
    }
    let prometheus = PrometheusServer::start(
        &measured.demos.each_ref().map(|demo| demo.addr),
        &repository_file("ops/prometheus/alerts.yml"),
    )
    .await;
    let refusals = r#"sum by (policy) (lockgate_rate_limit_decisions_total{outcome="refused"})"#;
    let limited = [("limited", f64::from(counts.over_quota))];
    prometheus.expect_result(refusals, "policy", &limited).await;
    let busy_ratio = r#"sum(lockgate_lock_requests_total{outcome="busy"})
        / sum(lockgate_lock_requests_total)"#;
    let ratio = f64::from(counts.busy) / f64::from(counts.busy + counts.granted);
    prometheus.expect_result(busy_ratio, "", &[("", ratio)]).await;
    let done = r#"sum by (route) (lockgate_deferred_runs_total{outcome="done"})"#;
    let refunds = [("/orders/{id}/refund", f64::from(counts.done))];
    prometheus.expect_result(done, "route", &refunds).await;

    // Each query of the dashboard and the alerts is valid, and asks for metrics that exist.
    let alert_queries = prometheus.alert_queries().await;
    assert!(!alert_queries.is_empty(), "Prometheus loads the alerts");
    let known = labels_of_series();
    for (series, labels) in labels_on_pages(&measured.metrics_pages().await) {
        assert_eq!(known.get(&series), Some(&labels), "{series}");
    }
    for query in dashboard_queries().into_iter().chain(alert_queries) {
        prometheus.query(&query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
        for selector in MetricSelector::parse_query(&query) {
            let labels = known.get(&selector.metric);
            let labels = labels.unwrap_or_else(|| panic!("no {}: {query}", selector.metric));
            assert!(selector.labels.is_subset(labels), "{selector:?} has {labels:?}: {query}");
        }
    }
}

#[test]
fn each_alert_links_to_a_section_of_the_book() {
    let alerts = fs::read_to_string(repository_file("ops/prometheus/alerts.yml"));
    let alerts = alerts.expect("alerts");
    let page = fs::read_to_string(repository_file("docs/observability.md")).expect("a page");
    let sections = page.lines().filter_map(|line| line.strip_prefix("### "));
    let sections: BTreeSet<_> =
        sections.map(|title| title.to_lowercase().replace(' ', "-")).collect();
    let links = alerts.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: "));
    let links: Vec<_> = links.collect();
    assert_eq!(links.len(), alerts.matches("- alert: ").count());
    for link in links {
        let section = link.rsplit_once("/docs/observability.md#").expect("a section").1;
        assert!(sections.contains(section), "{link}");
    }
}

/// The gauge whose name ends like that of a histogram.
const GAUGE_IN_SECONDS: &str = "lockgate_queue_oldest_due_seconds";

/// Names of the labels of all series, also of those that the demos do not have without a fault, a
/// waiter, a webhook or a task queue.
fn labels_of_series() -> BTreeMap<String, BTreeSet<String>> {
    let frozen = fs::read_to_string(repository_file("src/metrics/frozen_metrics.txt"));
    let mut series = BTreeMap::new();
    for line in frozen.expect("the frozen list").lines() {
        let mut words = line.split(' ').map(str::to_owned);
        let metric = words.next().expect("a name");
        let labels: BTreeSet<_> = words.collect();
        let is_histogram = ["_seconds", "_ratio", "_size"].iter().any(|end| metric.ends_with(end));
        if is_histogram && metric != GAUGE_IN_SECONDS {
            let le = "le".to_owned();
            series.insert(format!("{metric}_bucket"), labels.iter().cloned().chain([le]).collect());
            series.insert(format!("{metric}_sum"), labels.clone());
            series.insert(format!("{metric}_count"), labels);
        } else {
            series.insert(metric, labels);
        }
    }
    series
}

/// Names of the labels of the series of lockgate on pages of metrics.
fn labels_on_pages(pages: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut metrics: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let samples =
        pages.iter().flat_map(|page| page.lines()).filter(|line| line.starts_with("lockgate_"));
    for sample in samples {
        let (name, labels) = match sample.split_once('{') {
            Some((name, rest)) => (name, rest.rsplit_once('}').expect("a closed list").0),
            None => (sample.split_once(' ').expect("a value").0, ""),
        };
        // No label value of the demos has `="`.
        let names = labels.match_indices("=\"").map(|(end, _)| {
            let start = labels[..end].rfind(',').map_or(0, |comma| comma + 1);
            labels[start..end].to_owned()
        });
        metrics.entry(name.to_owned()).or_default().extend(names);
    }
    metrics
}

/// Returns the queries of the dashboard, with values in place of its variables.
fn dashboard_queries() -> Vec<String> {
    let dashboard = fs::read_to_string(repository_file("ops/grafana/lockgate.json"));
    let dashboard: Value = serde_json::from_str(&dashboard.expect("a dashboard")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.map(|target| {
        let query = target["expr"].as_str().expect("a query");
        let query = query.replace("$__rate_interval", "1m");
        query.replace("$job", ".*").replace("$queue", ".*")
    });
    queries.collect()
}

fn repository_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
