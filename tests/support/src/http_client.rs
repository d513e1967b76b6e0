//! A small client: each request on a connection of its own.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    pin::pin,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
};

use crate::wait::with_timeout;

/// A request on its way.
#[derive(Debug, Clone)]
#[must_use = "it is not sent yet"]
pub struct TestRequest {
    server_addr: SocketAddr,
    method: Method,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Bytes,
    local_ip: Option<IpAddr>,
}

/// A request to this address.
///
/// # Panics
///
/// If the method is none.
pub fn request(to: SocketAddr, method: &str, target: &str) -> TestRequest {
    TestRequest {
        server_addr: to,
        method: Method::from_bytes(method.as_bytes()).expect("a method"),
        target: target.to_owned(),
        headers: Vec::new(),
        body: Bytes::new(),
        local_ip: None,
    }
}

impl TestRequest {
    /// Sets path and query.
    pub(crate) fn with_target(mut self, target: String) -> Self {
        self.target = target;
        self
    }

    /// Adds a header field.
    pub fn header(self, name: &str, value: &str) -> Self {
        self.header_bytes(name, value.as_bytes())
    }

    /// Adds a header field of any bytes that a value may have.
    pub fn header_bytes(mut self, name: &str, value: &[u8]) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends it from this address of the machine.
    pub fn from_address(mut self, address: impl Into<IpAddr>) -> Self {
        self.local_ip = Some(address.into());
        self
    }

    /// Sends it and reads the answer.
    ///
    /// # Panics
    ///
    /// If there is no answer.
    pub async fn send(self) -> TestResponse {
        let what = format!("{} {:.80}", self.method, self.target);
        match self.try_send().await {
            Ok(answer) => answer,
            Err(error) => panic!("{what}: no answer: {error}"),
        }
    }

    /// Sends it and reads the answer.
    ///
    /// # Errors
    ///
    /// If the connection is refused, or ends without an answer.
    pub async fn try_send(self) -> Result<TestResponse, Box<dyn std::error::Error + Send + Sync>> {
        let what = format!("an answer to {} {:.80}", self.method, self.target);
        with_timeout(&what, self.exchange()).await
    }

    /// Sends it; `None` if there is no answer, or none within this time.
    pub(crate) async fn send_within(self, time: Duration) -> Option<TestResponse> {
        tokio::time::timeout(time, self.exchange()).await.ok()?.ok()
    }

    async fn exchange(self) -> Result<TestResponse, Box<dyn std::error::Error + Send + Sync>> {
        let stream = match self.local_ip {
            None => TcpStream::connect(self.server_addr).await?,
            Some(from) => {
                let socket = TcpSocket::new_v4()?;
                socket.bind(SocketAddr::new(from, 0))?;
                socket.connect(self.server_addr).await?
            }
        };
        stream.set_nodelay(true)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let mut request = hyper::Request::builder()
            .method(self.method)
            .uri(self.target)
            .header("host", self.server_addr.to_string());
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let response = sender.send_request(request.body(Full::new(self.body))?).await?;
        let (head, body) = response.into_parts();
        let answer = TestResponse {
            status: head.status,
            headers: head.headers,
            body: body.collect().await?.to_bytes(),
        };
        drop(sender);
        connection.abort();
        Ok(answer)
    }

    /// Sends it in the background.
    pub fn spawn(self) -> PendingResponse {
        PendingResponse(tokio::spawn(self.send()))
    }
}

/// A request that was sent in the background. Dropping it lets it go on.
#[derive(Debug)]
#[must_use = "its answer matters"]
pub struct PendingResponse(JoinHandle<TestResponse>);

impl PendingResponse {
    /// Its answer.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub async fn response(mut self) -> TestResponse {
        self.join_response().await
    }

    async fn join_response(&mut self) -> TestResponse {
        match (&mut self.0).await {
            Ok(answer) => answer,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Waits until something has come to pass that it brings about.
    ///
    /// # Panics
    ///
    /// If it is refused before that.
    pub async fn wait_for_effect(mut self, about: impl Future<Output = ()>) -> Self {
        let mut about = pin!(about);
        let answer = tokio::select! {
            biased;
            () = &mut about => return self,
            answer = self.join_response() => answer,
        };
        assert!(answer.status.as_u16() < 400, "{answer:?}");
        about.await;
        self.0 = tokio::spawn(async { answer });
        self
    }

    /// Closes its connection, as a client does that goes away.
    pub async fn disconnect(self) {
        self.0.abort();
        // Only then is the socket closed.
        let _ = self.0.await;
    }
}

/// An answer.
#[derive(Clone)]
pub struct TestResponse {
    /// The status.
    pub status: StatusCode,
    /// Header fields.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl TestResponse {
    /// Fails unless it has this status.
    ///
    /// # Panics
    ///
    /// If it has another one.
    #[track_caller]
    #[must_use]
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        self
    }

    /// The value of a field that is there exactly once.
    ///
    /// # Panics
    ///
    /// If it is not.
    #[track_caller]
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        let values: Vec<_> = self.headers.get_all(name).iter().collect();
        let [value] = values[..] else { panic!("expected one {name}: {self:?}") };
        value.to_str().expect("visible characters")
    }

    /// All values of a field, joined as a list.
    #[must_use]
    pub fn header_list(&self, name: &str) -> String {
        let values = self.headers.get_all(name).iter();
        let values: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
        values.join(", ")
    }

    /// Whether it has a field.
    #[must_use]
    pub fn has_header(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// If it is none.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("expected JSON: {error}: {self:?}"),
        }
    }

    /// `Retry-After` in seconds, which must be a whole number of at least one.
    ///
    /// # Panics
    ///
    /// If it is not.
    #[track_caller]
    #[must_use]
    pub fn retry_after_seconds(&self) -> u64 {
        let seconds = self.header("retry-after").parse().expect("whole seconds");
        assert!(seconds >= 1, "{self:?}");
        seconds
    }

    /// The problem document, with what every one has.
    ///
    /// # Panics
    ///
    /// If it is none.
    #[track_caller]
    #[must_use]
    pub fn problem_document(&self) -> Value {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16(), "{self:?}");
        assert!(problem["type"].as_str().is_some_and(|kind| kind.contains(':')), "{self:?}");
        assert!(problem["title"].as_str().is_some_and(|title| !title.is_empty()), "{self:?}");
        problem
    }
}

impl fmt::Debug for TestResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.status)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {value:?}")?;
        }
        write!(f, "{:.2000}", self.text())
    }
}
