//! Small HTTP client: each request has a connection of its own.

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

/// A request before it is sent.
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

/// Creates a request to this address.
///
/// # Panics
///
/// If the method is invalid.
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

    /// Adds a header. `host` replaces that of the server's address.
    pub fn header(self, name: &str, value: &str) -> Self {
        self.header_bytes(name, value.as_bytes())
    }

    /// Adds a header with any bytes that a value may have.
    pub fn header_bytes(mut self, name: &str, value: &[u8]) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the request from this address of the machine.
    pub fn from_address(mut self, address: impl Into<IpAddr>) -> Self {
        self.local_ip = Some(address.into());
        self
    }

    /// Sends the request and reads the response.
    ///
    /// # Panics
    ///
    /// If there is no response.
    pub async fn send(self) -> TestResponse {
        let request_line = format!("{} {:.80}", self.method, self.target);
        match self.try_send().await {
            Ok(answer) => answer,
            Err(error) => panic!("{request_line}: no answer: {error}"),
        }
    }

    /// Sends the request and reads the response.
    ///
    /// # Errors
    ///
    /// If the connection is refused, or ends without a response.
    pub async fn try_send(self) -> Result<TestResponse, Box<dyn std::error::Error + Send + Sync>> {
        let description = format!("an answer to {} {:.80}", self.method, self.target);
        with_timeout(&description, self.exchange()).await
    }

    /// Sends the request. Returns `None` if there is no response within this time.
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
        let mut request = hyper::Request::builder().method(self.method).uri(self.target);
        if self.headers.iter().all(|(name, _)| name != "host") {
            request = request.header("host", self.server_addr.to_string());
        }
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

    /// Sends the request in the background.
    pub fn spawn(self) -> PendingResponse {
        PendingResponse(tokio::spawn(self.send()))
    }
}

/// A request that was sent in the background. Dropping it does not cancel the request.
#[derive(Debug)]
#[must_use = "its answer matters"]
pub struct PendingResponse(JoinHandle<TestResponse>);

impl PendingResponse {
    /// Returns the response.
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

    /// Waits for an effect of the request.
    ///
    /// # Panics
    ///
    /// If the request is refused before.
    pub async fn wait_for_effect(mut self, effect: impl Future<Output = ()>) -> Self {
        let mut effect = pin!(effect);
        let answer = tokio::select! {
            biased;
            () = &mut effect => return self,
            answer = self.join_response() => answer,
        };
        assert!(answer.status.as_u16() < 400, "{answer:?}");
        effect.await;
        self.0 = tokio::spawn(async { answer });
        self
    }

    /// Closes the connection, like a client that disconnects.
    pub async fn disconnect(self) {
        self.0.abort();
        // The abort closes the socket only when the task has ended.
        let _ = self.0.await;
    }
}

/// A response.
#[derive(Clone)]
pub struct TestResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl TestResponse {
    /// Asserts the status.
    ///
    /// # Panics
    ///
    /// If the response has another status.
    #[track_caller]
    #[must_use]
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        self
    }

    /// Returns the value of a header that occurs exactly once.
    ///
    /// # Panics
    ///
    /// If it does not.
    #[track_caller]
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        let values: Vec<_> = self.headers.get_all(name).iter().collect();
        let [value] = values[..] else { panic!("expected one {name}: {self:?}") };
        value.to_str().expect("visible characters")
    }

    /// Returns all values of a header, joined as a list.
    #[must_use]
    pub fn header_list(&self, name: &str) -> String {
        let values = self.headers.get_all(name).iter();
        let values: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
        values.join(", ")
    }

    /// Returns true if the response has this header.
    #[must_use]
    pub fn has_header(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// Returns the body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    ///
    /// # Panics
    ///
    /// If the body is not of that form.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("expected JSON: {error}: {self:?}"),
        }
    }

    /// Returns `Retry-After` in seconds, which must be a whole number of at least one.
    ///
    /// # Panics
    ///
    /// If the header is missing or invalid.
    #[track_caller]
    #[must_use]
    pub fn retry_after_seconds(&self) -> u64 {
        let seconds = self.header("retry-after").parse().expect("whole seconds");
        assert!(seconds >= 1, "{self:?}");
        seconds
    }

    /// Returns the problem document, and checks the members that each one has.
    ///
    /// # Panics
    ///
    /// If the body is not of that form.
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
