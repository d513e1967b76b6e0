//! `PrometheusServer`: a Prometheus that a test starts.

use std::{
    env, fs,
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use lockgate_tests::{TEST_TIMEOUT, eventually, free_port, request};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::net::TcpStream;

/// Set by `cargo xtask test` if it found no Prometheus and could not install one.
const WITHOUT_PROMETHEUS_VARIABLE: &str = "LOCKGATE_TESTS_WITHOUT_PROMETHEUS";

/// Starts the server, and kills it when standard input closes, so that it does not outlive the
/// test.
const SUPERVISOR_SCRIPT: &str = r#"
prometheus "$@" >/dev/null 2>&1 &
cat >/dev/null
kill -KILL $! 2>/dev/null
wait $! 2>/dev/null
"#;

/// A Prometheus on a free port that scrapes each second. Dropping it ends it and removes its data.
pub(crate) struct PrometheusServer {
    addr: SocketAddr,
    folder: PathBuf,
    supervisor: Child,
}

/// Returns true if the tests with Prometheus are to be skipped.
pub(crate) fn is_without_prometheus() -> bool {
    env::var_os(WITHOUT_PROMETHEUS_VARIABLE).is_some()
}

impl PrometheusServer {
    /// Starts a server with these rules that scrapes these addresses, as the job `demos`.
    pub(crate) async fn start(targets: &[SocketAddr], rules: &Path) -> Self {
        let folder = env::temp_dir().join(format!("lockgate-{}", uuid::Uuid::new_v4().simple()));
        fs::create_dir(&folder).expect("a folder for the server");
        let targets: Vec<_> = targets.iter().map(SocketAddr::to_string).collect();
        // Prometheus reads YAML, of which JSON is a part.
        let config = serde_json::json!({
            "global": { "scrape_interval": "1s" },
            "rule_files": [rules],
            "scrape_configs": [{ "job_name": "demos", "static_configs": [{ "targets": targets }] }],
        });
        let config_path = folder.join("prometheus.yml");
        fs::write(&config_path, config.to_string()).expect("the settings");
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR_SCRIPT, "sh"])
            .arg(format!("--config.file={}", config_path.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={addr}"))
            .stdin(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let server = Self { addr, folder, supervisor };
        eventually("Prometheus to listen", async || TcpStream::connect(addr).await.is_ok()).await;
        eventually("Prometheus to be ready", async || {
            request(addr, "GET", "/-/ready").send().await.status == 200
        })
        .await;
        server
    }

    /// Returns the result of an instant query, or the error of Prometheus.
    pub(crate) async fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let query = utf8_percent_encode(query, NON_ALPHANUMERIC);
        let answer = self.get(&format!("query?query={query}")).await;
        if answer["status"] == "success" {
            Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
        } else {
            Err(answer["error"].to_string())
        }
    }

    /// Returns the queries of the alerts that it has loaded.
    pub(crate) async fn alert_queries(&self) -> Vec<String> {
        let answer = self.get("rules?type=alert").await;
        let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
        let rules = groups.iter().filter_map(|group| group["rules"].as_array()).flatten();
        rules.filter_map(|rule| rule["query"].as_str().map(str::to_owned)).collect()
    }

    async fn get(&self, resource: &str) -> Value {
        request(self.addr, "GET", &format!("/api/v1/{resource}")).send().await.json()
    }

    /// Waits until a query has this result: pairs of a label's value and a number. The last result
    /// is in the message of a failure.
    pub(crate) async fn expect_result(&self, query: &str, label: &str, expected: &[(&str, f64)]) {
        let mut last = Vec::new();
        let waited = tokio::time::timeout(TEST_TIMEOUT, async {
            loop {
                last = self.query(query).await.expect("a valid query");
                if matches_samples(&last, label, expected) {
                    return;
                }
                // Prometheus reports no scrape, and scrapes once a second.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let is_reached = waited.await.is_ok();
        assert!(is_reached, "{query}: expected {expected:?}, got {last:#?}");
    }
}

fn matches_samples(samples: &[Value], label: &str, expected: &[(&str, f64)]) -> bool {
    let sample = |sample: &Value| {
        let label = sample["metric"][label].as_str().unwrap_or_default().to_owned();
        (label, sample["value"][1].as_str().and_then(|value| value.parse::<f64>().ok()))
    };
    let mut samples: Vec<_> = samples.iter().map(sample).collect();
    samples.sort_by(|left, right| left.0.cmp(&right.0));
    samples.len() == expected.len()
        && samples.iter().zip(expected).all(|((label, value), (expected_label, number))| {
            label == expected_label && value.is_some_and(|value| (value - number).abs() < 1e-9)
        })
}

impl Drop for PrometheusServer {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns what `promtool check metrics` says about a page of metrics; empty if it has no
/// complaint.
pub(crate) fn complaints_of_promtool(page: &str) -> String {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    // It reads all before it writes, so neither waits for the other.
    promtool.stdin.take().expect("it is piped").write_all(page.as_bytes()).expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    if text.is_empty() && !output.status.success() { output.status.to_string() } else { text }
}
