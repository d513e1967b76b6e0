//! `DemoProcess`: a demo or another example, run as a process.

use std::{
    collections::HashMap,
    env,
    io::{BufRead as _, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, OnceLock},
    thread,
};

use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    http_client::{TestRequest, request},
    site::WebFramework,
    wait::eventually,
};

/// A running demo. Dropping it kills the process.
#[derive(Debug)]
pub struct DemoProcess {
    /// Address on which it listens.
    pub addr: SocketAddr,
    child: Child,
    stdout_lines: Arc<Mutex<Vec<String>>>,
    stderr_lines: Arc<Mutex<Vec<String>>>,
}

impl DemoProcess {
    /// Starts the demo of this framework on this store: `memory`, or a URL.
    ///
    /// # Panics
    ///
    /// If its first line is not the address.
    pub async fn start(framework: WebFramework, store: &str) -> Self {
        let name = match framework {
            WebFramework::Axum => "example-axum",
            WebFramework::Actix => "example-actix-web",
        };
        Self::start_example(name, store).await
    }

    /// Starts any package of `examples/` on this store.
    ///
    /// # Panics
    ///
    /// If its first line is not the address.
    pub async fn start_example(name: &str, store: &str) -> Self {
        // Not on the runtime: the build may take a minute, and connections of the test run there.
        let binary = tokio::task::spawn_blocking({
            let name = name.to_owned();
            move || example_binary(&name)
        })
        .await
        .expect("the demos are built");
        let mut child = Command::new(binary)
            .env("LOCKGATE_STORE", store)
            .env("PORT", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the demo starts");
        // Reads the output to the end, since a demo blocks when it cannot print.
        let stdout_lines = collect_lines(child.stdout.take().expect("it is piped"));
        let stderr_lines = collect_lines(child.stderr.take().expect("it is piped"));
        let mut demo = Self { addr: ([127, 0, 0, 1], 0).into(), child, stdout_lines, stderr_lines };
        eventually("the demo to listen", async || !demo.stdout_lines.lock().is_empty()).await;
        let first_line = demo.stdout_lines.lock()[0].clone();
        let addr = first_line.strip_prefix("listening on http://");
        let addr = addr.unwrap_or_else(|| panic!("its first line is {first_line:?}"));
        demo.addr = addr.parse().expect("an address");
        demo
    }

    /// Returns the lines of the standard output.
    #[must_use]
    pub fn stdout_lines(&self) -> Vec<String> {
        self.stdout_lines.lock().clone()
    }

    /// Returns its log.
    #[must_use]
    pub fn stderr_lines(&self) -> Vec<String> {
        self.stderr_lines.lock().clone()
    }

    /// Creates a request with this method.
    pub fn request(&self, method: &str, target: &str) -> TestRequest {
        request(self.addr, method, target)
    }

    /// Creates a GET.
    pub fn get(&self, target: &str) -> TestRequest {
        self.request("GET", target)
    }

    /// Creates a POST.
    pub fn post(&self, target: &str) -> TestRequest {
        self.request("POST", target)
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    ///
    /// If the process has ended.
    pub fn terminate(&self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "no demo to stop");
    }

    /// Waits for the end of the process.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the demo to end", async || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })
        .await;
        status.expect("it has ended")
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for DemoProcess {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("the demo on {} logged:", self.addr);
            self.stderr_lines.lock().iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}

fn collect_lines(from: impl Read + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&lines);
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            collected.lock().push(line);
        }
    });
    lines
}

fn example_binary(name: &str) -> &'static Path {
    static BINARIES: OnceLock<HashMap<String, PathBuf>> = OnceLock::new();
    let binary = BINARIES.get_or_init(build_examples).get(name);
    binary.unwrap_or_else(|| panic!("cargo has built no {name}"))
}

const EXAMPLES: [&str; 4] = ["example-axum", "example-actix-web", "example-hyper", "example-tonic"];

/// Builds the examples, because `cargo test` does not build the binaries of other packages. Cargo
/// has finished its own build when it starts a test, so it can be called again. The same profile,
/// target directory and package are used, so that the features match and the build of the
/// workspace's tests is reused. `cargo xtask test` builds the examples first and passes their
/// folder.
fn build_examples() -> HashMap<String, PathBuf> {
    if let Some(folder) = env::var_os("LOCKGATE_TESTS_DEMOS").map(PathBuf::from) {
        let file = |name: &str| folder.join(format!("{name}{}", env::consts::EXE_SUFFIX));
        return EXAMPLES.map(|name| (name.to_owned(), file(name))).into();
    }
    let test_path = env::current_exe().expect("a test has a path");
    let profile = test_path.parent().and_then(Path::parent).expect("it lies in deps");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--quiet", "--message-format", "json"])
        .args(EXAMPLES.iter().flat_map(|name| ["-p", name, "--bin", name]))
        .args(["-p", env!("CARGO_PKG_NAME")])
        .arg("--target-dir")
        .arg(profile.parent().expect("a profile lies in a target directory"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let output = build.stderr(Stdio::inherit()).output().expect("cargo");
    assert!(output.status.success(), "the demos do not compile");
    let messages = output.stdout.split(|&byte| byte == b'\n');
    let messages = messages.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    messages
        .filter_map(|message| {
            let path = message["executable"].as_str()?;
            Some((message["target"]["name"].as_str()?.to_owned(), path.into()))
        })
        .collect()
}
