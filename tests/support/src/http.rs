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

use crate::wait::within;

/// A request on its way.
#[derive(Debug, Clone)]
#[must_use = "it is not sent yet"]
pub struct Request {
    to: SocketAddr,
    method: Method,
    target: String,
    fields: Vec<(String, Vec<u8>)>,
    body: Bytes,
    from: Option<IpAddr>,
}

/// A request to this address.
///
/// # Panics
///
/// If the method is none.
pub fn request(to: SocketAddr, method: &str, target: &str) -> Request {
    Request {
        to,
        method: Method::from_bytes(method.as_bytes()).expect("a method"),
        target: target.to_owned(),
        fields: Vec::new(),
        body: Bytes::new(),
        from: None,
    }
}

impl Request {
    /// Sets path and query.
    pub(crate) fn target(mut self, target: String) -> Self {
        self.target = target;
        self
    }

    /// Adds a header field.
    pub fn header(self, name: &str, value: &str) -> Self {
        self.header_bytes(name, value.as_bytes())
    }

    /// Adds a header field of any bytes that a value may have.
    pub fn header_bytes(mut self, name: &str, value: &[u8]) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends it from this address of the machine.
    pub fn from(mut self, address: impl Into<IpAddr>) -> Self {
        self.from = Some(address.into());
        self
    }

    /// Sends it and reads the answer.
    ///
    /// # Panics
    ///
    /// If there is no answer.
    pub async fn send(self) -> Answer {
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
    pub async fn try_send(self) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
        let what = format!("an answer to {} {:.80}", self.method, self.target);
        within(&what, self.exchange()).await
    }

    /// Sends it; `None` if there is no answer, or none within this time.
    pub(crate) async fn answer_within(self, time: Duration) -> Option<Answer> {
        tokio::time::timeout(time, self.exchange()).await.ok()?.ok()
    }

    async fn exchange(self) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
        let stream = match self.from {
            None => TcpStream::connect(self.to).await?,
            Some(from) => {
                let socket = TcpSocket::new_v4()?;
                socket.bind(SocketAddr::new(from, 0))?;
                socket.connect(self.to).await?
            }
        };
        stream.set_nodelay(true)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let mut request = hyper::Request::builder()
            .method(self.method)
            .uri(self.target)
            .header("host", self.to.to_string());
        for (name, value) in self.fields {
            request = request.header(name, value);
        }
        let response = sender.send_request(request.body(Full::new(self.body))?).await?;
        let (head, body) = response.into_parts();
        let answer = Answer {
            status: head.status,
            headers: head.headers,
            body: body.collect().await?.to_bytes(),
        };
        drop(sender);
        connection.abort();
        Ok(answer)
    }

    /// Sends it in the background.
    pub fn spawn(self) -> Pending {
        Pending(tokio::spawn(self.send()))
    }
}

/// A request that was sent in the background. Dropping it lets it go on.
#[derive(Debug)]
#[must_use = "its answer matters"]
pub struct Pending(JoinHandle<Answer>);

impl Pending {
    /// Its answer.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub async fn answer(mut self) -> Answer {
        self.comes().await
    }

    async fn comes(&mut self) -> Answer {
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
    pub async fn brings(mut self, about: impl Future<Output = ()>) -> Self {
        let mut about = pin!(about);
        let answer = tokio::select! {
            biased;
            () = &mut about => return self,
            answer = self.comes() => answer,
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
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// Header fields.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// Fails unless it has this status.
    ///
    /// # Panics
    ///
    /// If it has another one.
    #[track_caller]
    #[must_use]
    pub fn expect(self, status: u16) -> Self {
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
    pub fn field(&self, name: &str) -> &str {
        let values: Vec<_> = self.headers.get_all(name).iter().collect();
        let [value] = values[..] else { panic!("expected one {name}: {self:?}") };
        value.to_str().expect("visible characters")
    }

    /// All values of a field, joined as a list.
    #[must_use]
    pub fn list(&self, name: &str) -> String {
        let values = self.headers.get_all(name).iter();
        let values: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
        values.join(", ")
    }

    /// Whether it has a field.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
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
    pub fn retry_after(&self) -> u64 {
        let seconds = self.field("retry-after").parse().expect("whole seconds");
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
    pub fn problem(&self) -> Value {
        assert_eq!(self.field("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16(), "{self:?}");
        assert!(problem["type"].as_str().is_some_and(|kind| kind.contains(':')), "{self:?}");
        assert!(problem["title"].as_str().is_some_and(|title| !title.is_empty()), "{self:?}");
        problem
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.status)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {value:?}")?;
        }
        write!(f, "{:.2000}", self.text())
    }
}
