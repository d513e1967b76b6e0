//! `DemoPage`: the page of a running demo in a browser.

use std::time::{Duration, Instant};

use fantoccini::{Locator, error::CmdError, key::Key};
use lockgate_tests::{DemoProcess, WebFramework};
use serde::Deserialize;
use serde_json::Value;

use crate::chromium::{Chromium, Viewport};

/// Longest wait for a condition of the page. A step of the tour takes up to 6 s.
const DEADLINE: Duration = Duration::from_secs(40);

/// Pause between two checks of a condition. Each check is a call of the WebDriver server.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Order that the page shows at first.
pub(crate) const ORDER: &str = "7";

/// The rows of the panel "Responses", the newest one first.
const RESPONSES: &str = "[...document.querySelector('#answers').tBodies[0].rows].map((row) => ({
    request: row.cells[1].textContent,
    status: row.cells[2].textContent.split(' ')[0],
    count: Number(row.dataset.count),
    retryAfter: row.cells[4].textContent,
    body: row.cells[7].textContent,
}))";

/// Script whose result a failed test prints.
const PAGE_STATE: &str = "({
    tour: document.querySelector('#tour-says')?.textContent,
    zones: [...document.querySelectorAll('[data-zone] h3')].map((zone) => zone.textContent),
    jobs: [...document.querySelectorAll('#jobs li')].map((job) => job.textContent),
    responses: document.querySelector('#answers')?.tBodies[0].innerText,
    console: document.querySelector('main#page')?.innerText,
})";

/// A row of the panel "Responses". Equal responses fold into one row.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoggedResponse {
    pub(crate) request: String,
    pub(crate) status: String,
    pub(crate) count: u64,
    pub(crate) retry_after: String,
    pub(crate) body: String,
}

/// The page of a demo, whose process and browser it owns.
pub(crate) struct DemoPage {
    pub(crate) demo: DemoProcess,
    pub(crate) framework: WebFramework,
    browser: Chromium,
}

impl DemoPage {
    /// Starts a demo on this store, and opens its page.
    pub(crate) async fn open(framework: WebFramework, viewport: Viewport, store: &str) -> Self {
        let demo = DemoProcess::start(framework, store).await;
        let page = Self { demo, framework, browser: Chromium::start(viewport).await };
        page.open_page_of(&page.demo).await;
        page
    }

    /// Opens the page of another demo.
    pub(crate) async fn open_page_of(&self, demo: &DemoProcess) {
        let url = format!("http://{}/", demo.addr);
        self.browser.client.goto(&url).await.expect("the page opens");
        self.wait_until("the demo to be available", "document.querySelector('#health.good')").await;
    }

    /// Opens another page of the demo.
    pub(crate) async fn go_to(&self, target: &str) {
        self.go_to_url(&format!("http://{}{target}", self.demo.addr)).await;
    }

    /// Opens a page of any server.
    pub(crate) async fn go_to_url(&self, url: &str) {
        self.browser.client.goto(url).await.expect("the page opens");
    }

    /// Presses a key in the element that has the focus.
    pub(crate) async fn press(&self, key: Key) {
        let focused = self.browser.client.active_element().await.expect("the focus");
        focused.send_keys(&key).await.expect("a key");
    }

    /// Clicks the element.
    pub(crate) async fn click(&self, css: &str) {
        self.try_click(css).await.unwrap_or_else(|error| panic!("no click on {css}: {error}"));
    }

    async fn try_click(&self, css: &str) -> Result<(), CmdError> {
        self.browser.client.find(Locator::Css(css)).await?.click().await
    }

    /// Replaces the text of an input.
    pub(crate) async fn enter(&self, css: &str, text: &str) {
        self.try_enter(css, text).await.unwrap_or_else(|error| panic!("no input {css}: {error}"));
    }

    async fn try_enter(&self, css: &str, text: &str) -> Result<(), CmdError> {
        let input = self.browser.client.find(Locator::Css(css)).await?;
        input.clear().await?;
        input.send_keys(text).await
    }

    /// Evaluates an expression in the page.
    pub(crate) async fn evaluate(&self, expression: &str) -> Value {
        let script = format!("return ({expression});");
        let value = self.browser.client.execute(&script, Vec::new()).await;
        value.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Returns the text of an element.
    pub(crate) async fn text(&self, css: &str) -> String {
        let text = self.evaluate(&format!("document.querySelector({css:?}).textContent")).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true in the sense of JavaScript.
    pub(crate) async fn wait_until(&self, what: &str, condition: &str) {
        let condition = format!("Boolean({condition})");
        self.poll(what, async || self.evaluate(&condition).await == true).await;
    }

    /// Waits until the element has this text.
    pub(crate) async fn wait_for_text(&self, css: &str, text: &str) {
        self.poll(&format!("{css} to be {text:?}"), async || self.text(css).await == text).await;
    }

    /// Waits until a zone of the gate counts so many requests.
    pub(crate) async fn wait_for_zone(&self, zone: &str, count: u64) {
        self.wait_for_text(&format!("#count-{zone}"), &count.to_string()).await;
    }

    /// Waits until the list of deferred requests has an entry in this state.
    pub(crate) async fn wait_for_job(&self, state: &str) {
        let entry = format!("document.querySelector('#jobs li[data-job={state}]')");
        self.wait_until(&format!("a {state} request"), &entry).await;
    }

    /// Returns the rows of the panel "Responses".
    pub(crate) async fn responses(&self) -> Vec<LoggedResponse> {
        serde_json::from_value(self.evaluate(RESPONSES).await).expect("rows")
    }

    /// Counts the responses with this status to requests that start with this text.
    pub(crate) async fn count_responses(&self, request: &str, status: &str) -> u64 {
        let responses = self.responses().await.into_iter();
        let responses = responses.filter(|row| row.request.starts_with(request));
        responses.filter(|row| row.status == status).map(|row| row.count).sum()
    }

    /// Waits for so many responses with this status.
    pub(crate) async fn wait_for_responses(&self, request: &str, status: &str, count: u64) {
        self.poll(&format!("{count} times {status} to {request}"), async || {
            self.count_responses(request, status).await >= count
        })
        .await;
    }

    async fn poll(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let started = Instant::now();
        while !holds().await {
            if started.elapsed() > DEADLINE {
                panic!("waited too long for {what}: {:#}", self.evaluate(PAGE_STATE).await);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the console messages of failed scripts. A refused request is a message too, but not
    /// of a script.
    pub(crate) async fn script_errors(&self) -> Vec<String> {
        let messages = self.browser.console_messages().await.into_iter();
        messages
            .filter(|message| message["level"] == "SEVERE" && message["source"] != "network")
            .map(|message| message["message"].to_string())
            .collect()
    }

    /// Closes the browser.
    pub(crate) async fn close(self) {
        self.browser.close().await;
    }
}
