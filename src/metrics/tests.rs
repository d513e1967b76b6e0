//! The names, kinds and labels of all metrics are frozen: dashboards and alerts depend on them.

mod gauges;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

use crate::{
    instruments::metric_list::{COUNTERS, GAUGES, HISTOGRAMS},
    rate_limit::{Policy, Quota},
    store::Store,
};

/// Page that lists all metrics.
const METRICS_PAGE: &str = include_str!("../../docs/observability.md");

/// Values by metric with its labels.
#[derive(Debug, Default, Clone)]
struct TestRecorder(Arc<Mutex<BTreeMap<String, f64>>>);

struct TestHandle(TestRecorder, String);

impl TestHandle {
    fn add(&self, value: f64) {
        *self.0.0.lock().expect("no panic").entry(self.1.clone()).or_default() += value;
    }
}

impl CounterFn for TestHandle {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for TestHandle {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, value: f64) {
        self.0.0.lock().expect("no panic").insert(self.1.clone(), value);
    }
}

impl HistogramFn for TestHandle {
    fn record(&self, _: f64) {
        self.add(1.0);
    }
}

impl TestRecorder {
    fn handle(&self, key: &Key) -> Arc<TestHandle> {
        let labels = key.labels().map(|label| format!("{}={}", label.key(), label.value()));
        let name = format!("{}{{{}}}", key.name(), labels.collect::<Vec<_>>().join(","));
        Arc::new(TestHandle(self.clone(), name))
    }

    fn value(&self, metric: &str) -> Option<f64> {
        self.0.lock().expect("no panic").get(metric).copied()
    }

    /// Returns the values of a metric in one state, one for each queue.
    fn values(&self, metric: &str, state: &str) -> Vec<f64> {
        let (start, end) = (format!("{metric}{{"), format!("state={state}}}"));
        let values = self.0.lock().expect("no panic");
        let found = values.iter().filter(|(key, _)| key.starts_with(&start) && key.ends_with(&end));
        found.map(|(_, value)| *value).collect()
    }

    /// Returns the values of a label of all metrics.
    fn label_values(&self, label: &str) -> BTreeSet<String> {
        let values = self.0.lock().expect("no panic");
        let labels = values.keys().flat_map(|key| key.split(['{', ',', '}']));
        let found = labels.filter_map(|pair| pair.strip_prefix(label)?.strip_prefix('='));
        found.map(str::to_owned).collect()
    }
}

impl Recorder for TestRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.handle(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.handle(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.handle(key))
    }
}

#[test]
fn names_and_labels_are_frozen() {
    let counters = COUNTERS.iter().map(|(family, _)| {
        let variants = family.variants.iter().map(|(name, _)| *name);
        (family.name, std::iter::once(family.label).chain(variants).collect::<Vec<_>>())
    });
    let histograms = HISTOGRAMS.iter().map(|(family, _)| (family.name, vec![family.label]));
    let gauges = GAUGES.iter().map(|(name, labels, _)| (*name, labels.to_vec()));
    let found: BTreeSet<String> = counters
        .chain(histograms)
        .chain(gauges)
        .map(|(name, labels)| format!("{name} {}", labels.join(" ")).trim_end().to_owned())
        .collect();
    let frozen = include_str!("frozen_metrics.txt").lines().map(str::to_owned).collect();
    assert_eq!(found, frozen, "dashboards and alerts depend on these names");
    for (family, _) in COUNTERS {
        assert!(family.name.ends_with("_total"), "{}", family.name);
    }
}

#[test]
fn each_metric_with_its_labels_and_their_values_is_on_the_page() {
    let assert_documents = |text: &str, name: &str, terms: &[&str]| {
        for term in terms {
            assert!(text.contains(&format!("`{term}`")), "{name}: no `{term}` in {text}");
        }
    };
    let row_of = |name: &str| {
        let cell = format!("`{}`", name.strip_prefix("lockgate_").expect("a prefix"));
        let rows = METRICS_PAGE.lines().filter_map(|line| line.strip_prefix("| "));
        let row =
            rows.filter(|row| row.split('|').next().is_some_and(|names| names.contains(&cell)));
        row.collect::<Vec<_>>().concat()
    };
    for (family, _) in COUNTERS {
        let row = row_of(family.name);
        assert_documents(&row, family.name, &[family.label]);
        for (label, values) in family.variants {
            assert_documents(&row, family.name, &[label]);
            assert_documents(&row, family.name, values);
        }
    }
    for (family, _) in HISTOGRAMS {
        assert_documents(&row_of(family.name), family.name, &[family.label]);
    }
    for (name, labels, _) in GAUGES {
        let (_, text) = METRICS_PAGE.split_once("These gauges belong").expect("their paragraphs");
        assert_documents(text, name, &[name.trim_start_matches("lockgate_")]);
        assert_documents(text, name, labels);
    }
}

/// One test for all engines, since there is one recorder in a process.
#[tokio::test]
async fn operations_of_all_engines_are_counted() {
    // What is counted before the installation is lost. What happens after it is not.
    let early = Store::memory().lock("order:7").acquire().await.expect("it is free");
    early.release().await;
    let recorder = TestRecorder::default();
    metrics::set_global_recorder(recorder.clone()).expect("no other test sets one");
    let store = Store::memory();

    let guard = store.lock("order:7").acquire().await.expect("it is free");
    assert!(store.lock("order:7").acquire().await.is_err());
    let wait = store.lock("order:7").wait(Duration::from_millis(1));
    assert!(wait.acquire().await.is_err());
    super::collect(&store).await;
    assert_eq!(recorder.value("lockgate_locks_held{}"), Some(1.0));
    guard.release().await;
    for (outcome, count) in [("granted", 1.0), ("busy", 1.0), ("timeout", 1.0)] {
        let metric = format!("lockgate_lock_requests_total{{lock=c,outcome={outcome}}}");
        assert_eq!(recorder.value(&metric), Some(count), "{metric}");
    }
    assert_eq!(recorder.value("lockgate_lock_hold_seconds{lock=c}"), Some(1.0));

    let quota = Quota::requests(1).per(Duration::from_secs(60));
    let limiter = store.rate_limiter(Policy::new(quota).with_name("api"));
    for _ in 0..3 {
        limiter.check("7", 1).await.expect("the store answers");
    }
    let decisions = "lockgate_rate_limit_decisions_total{policy=api,outcome";
    let metric = format!("{decisions}=admitted,source=store,mode=enforced}}");
    assert_eq!(recorder.value(&metric), Some(1.0));
    // The first answer says that nothing is left, so no refusal needs the store.
    let metric = format!("{decisions}=refused,source=memory,mode=enforced}}");
    assert_eq!(recorder.value(&metric), Some(2.0));

    store.queue::<String>("emails").push(&"a".to_owned()).await.expect("there is room");
    let metric = "lockgate_tasks_pushed_total{queue=emails,outcome=stored}";
    assert_eq!(recorder.value(metric), Some(1.0));

    let stats = store.stats();
    assert_eq!((stats.locks_granted, stats.locks_busy, stats.lock_timeouts), (1, 1, 1));
    assert_eq!((stats.admitted, stats.refused, stats.tasks_pushed), (1, 2, 1));

    // More names than a label distinguishes.
    for number in 0..300 {
        let queue = store.queue::<String>(format!("queue-{number}").as_str());
        queue.push(&"a".to_owned()).await.expect("there is room");
    }
    let metric = "lockgate_tasks_pushed_total{queue=other,outcome=stored}";
    assert!(recorder.value(metric).is_some_and(|count| count >= 44.0));
}
