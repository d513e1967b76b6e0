//! Connections by `http` and by `https`.

use std::{
    error::Error,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::{BoxFuture, ready};
use http::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};
use tower_service::Service;

use crate::{clock::LONGEST, https};

type BoxError = Box<dyn Error + Send + Sync>;

/// Connects to where the URL says, with TLS if it says so.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    /// Only where the URL needs it.
    tls: Option<TlsConnector>,
    within: Option<Duration>,
}

impl Connector {
    pub(super) fn new(https: bool) -> Self {
        Self::of(https.then(|| https::of_system("runs elsewhere")))
    }

    #[cfg(test)]
    pub(super) fn with(tls: ClientConfig) -> Self {
        Self::of(Some(tls))
    }

    fn of(tls: Option<ClientConfig>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        Self { tcp, tls: tls.map(|tls| TlsConnector::from(Arc::new(tls))), within: None }
    }

    /// As that of TCP alone, of which each address has its part: name, connection and handshake.
    pub(super) fn set_connect_timeout(&mut self, within: Option<Duration>) {
        self.tcp.set_connect_timeout(within);
        self.within = within;
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<TokioIo<Stream>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let secure = uri.scheme_str() == Some("https");
        let tls = self.tls.clone().filter(|_| secure);
        if secure && tls.is_none() {
            // Never in the clear.
            return Box::pin(ready(Err("there is no TLS for an https URL".into())));
        }
        // As a certificate has it: an IPv6 address without its brackets.
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let (tcp, within) = (self.tcp.call(uri), self.within.unwrap_or(LONGEST));
        let connected = async move {
            let stream = tcp.await?.into_inner();
            Ok(TokioIo::new(match tls {
                Some(tls) => {
                    Stream::Tls(Box::new(tls.connect(ServerName::try_from(host)?, stream).await?))
                }
                None => Stream::Plain(stream),
            }))
        };
        Box::pin(async move { tokio::time::timeout(within, connected).await? })
    }
}

/// One connection.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
