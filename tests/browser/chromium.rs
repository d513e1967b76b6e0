//! `Chromium`: a browser without a window, and the WebDriver server that drives it.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use fantoccini::{
    Client, ClientBuilder,
    wd::{Capabilities, WebDriverCompatibleCommand},
};
use http::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use lockgate_tests::with_timeout;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use url::{ParseError, Url};

/// Set by `cargo xtask test` if it found no browser and could not install one.
const WITHOUT_BROWSER_VARIABLE: &str = "LOCKGATE_TESTS_WITHOUT_BROWSER";

/// Starts chromedriver, and kills it together with its browser when standard input closes, so that
/// neither outlives the test. All of them are in the process group of this shell.
const SUPERVISOR_SCRIPT: &str = "chromedriver --port=0 & cat >/dev/null; kill -9 0";

/// Time that chromedriver has to close its browser and remove the profile before it is killed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Size of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Viewport {
    /// 1280 px wide.
    Desktop,
    /// 390 px wide.
    Phone,
}

/// A running browser. Dropping it ends the browser.
pub(crate) struct Chromium {
    pub(crate) client: Client,
    driver: DriverProcess,
}

/// A running chromedriver.
struct DriverProcess {
    supervisor: Child,
    port: Option<u16>,
}

/// Returns true if the tests in a browser are to be skipped.
pub(crate) fn is_without_browser() -> bool {
    env::var_os(WITHOUT_BROWSER_VARIABLE).is_some()
}

impl Chromium {
    /// Starts a browser.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub(crate) async fn start(viewport: Viewport) -> Self {
        let driver = DriverProcess::start().await;
        let url = format!("http://127.0.0.1:{}/", driver.port.expect("it listens"));
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities(viewport))
            .connect(&url)
            .await
            .unwrap_or_else(|error| panic!("chromedriver starts no browser: {error}"));
        Self { client, driver }
    }

    /// Returns the console messages since the last call.
    pub(crate) async fn console_messages(&self) -> Vec<Value> {
        let messages = self.client.issue_cmd(ReadConsole).await.expect("the console");
        messages.as_array().cloned().unwrap_or_default()
    }

    /// Closes the browser.
    pub(crate) async fn close(self) {
        let Self { client, driver } = self;
        client.close().await.expect("the browser closes");
        drop(driver);
    }
}

fn capabilities(viewport: Viewport) -> Capabilities {
    // The page is ours. The sandbox needs privileges that root and most containers lack.
    let args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
    let mut options = json!({ "args": args });
    match viewport {
        Viewport::Desktop => {
            options["args"].as_array_mut().expect("a list").push("--window-size=1280,1000".into());
        }
        // A window cannot be so narrow.
        Viewport::Phone => {
            let metrics = json!({ "width": 390, "height": 844, "pixelRatio": 1.0, "touch": false });
            options["mobileEmulation"] = json!({ "deviceMetrics": metrics });
        }
    }
    let mut capabilities = Capabilities::new();
    capabilities.insert("browserName".to_owned(), "chrome".into());
    capabilities.insert("goog:chromeOptions".to_owned(), options);
    capabilities.insert("goog:loggingPrefs".to_owned(), json!({ "browser": "ALL" }));
    capabilities
}

/// Chromium's command for the messages of the console, which WebDriver does not have.
#[derive(Debug)]
struct ReadConsole;

impl WebDriverCompatibleCommand for ReadConsole {
    fn endpoint(&self, base_url: &Url, session_id: Option<&str>) -> Result<Url, ParseError> {
        base_url.join(&format!("session/{}/se/log", session_id.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(json!({ "type": "browser" }).to_string()))
    }
}

impl DriverProcess {
    async fn start() -> Self {
        let version = Command::new("chromedriver").arg("--version").stdin(Stdio::null()).output();
        assert!(
            version.is_ok_and(|version| version.status.success()),
            "chromedriver does not start: install Chromium with its driver (Debian: the packages \
             chromium and chromium-driver), or set {WITHOUT_BROWSER_VARIABLE}=1 to skip the tests \
             in a browser"
        );
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR_SCRIPT])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let port = read_port(supervisor.stdout.take().expect("it is piped"));
        let mut driver = Self { supervisor, port: None };
        let port = with_timeout("chromedriver to listen", port).await;
        driver.port = Some(port.expect("chromedriver says its port"));
        driver
    }

    /// Asks chromedriver to close its browser and to end.
    fn shut_down(&self) -> std::io::Result<()> {
        let Some(port) = self.port else { return Ok(()) };
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(SHUTDOWN_TIMEOUT))?;
        let head = format!("GET /shutdown HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n");
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        let _ = self.shut_down();
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

/// Reads the output to its end, since chromedriver would stop at a full pipe, and sends the port.
fn read_port(output: ChildStdout) -> oneshot::Receiver<u16> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        let mut sender = Some(sender);
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let port = line.split_once("started successfully on port ");
            let port = port.and_then(|(_, port)| port.trim_end_matches('.').parse::<u16>().ok());
            if let Some(port) = port
                && let Some(sender) = sender.take()
            {
                let _ = sender.send(port);
            }
        }
    });
    receiver
}
