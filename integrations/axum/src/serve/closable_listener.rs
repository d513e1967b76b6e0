//! `ClosableListener`: a listener whose connections are closed at the end of the shutdown.
//!
//! axum runs each connection in a task of its own, which continues even if the server's future is
//! dropped. A response body that streams, or an upgraded connection, would never end.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use axum::serve::Listener;
use futures_util::future::BoxFuture;
use lockgate::driver::{StopPhase, StopSignals};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct ClosableListener<L> {
    listener: L,
    signals: StopSignals,
}

impl<L> ClosableListener<L> {
    pub(super) fn new(listener: L, signals: StopSignals) -> Self {
        Self { listener, signals }
    }
}

impl<L: Listener> Listener for ClosableListener<L> {
    type Io = ClosableConnection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (io, peer) = self.listener.accept().await;
        (ClosableConnection::new(io, self.signals.clone()), peer)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// Connection that fails from [`StopPhase::Closing`] on. hyper polls its flush in each step, and so
/// drops the request or the body that it serves.
pub(super) struct ClosableConnection<I> {
    io: I,
    signals: StopSignals,
    closing: BoxFuture<'static, ()>,
    /// Task that `closing` wakes.
    waker: Option<Waker>,
    is_closed: bool,
}

impl<I> ClosableConnection<I> {
    fn new(io: I, signals: StopSignals) -> Self {
        let closing = Box::pin(signals.reached(StopPhase::Closing));
        Self { io, signals, closing, waker: None, is_closed: false }
    }

    /// Fails if the connection is closed. Before the shutdown it takes no lock, apart from the
    /// first call of a task.
    fn check_open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let is_registered = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if is_registered && !self.signals.is_stopping() {
            return Ok(());
        }
        self.is_closed = self.is_closed || self.closing.as_mut().poll(cx).is_ready();
        if self.is_closed {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.waker = Some(cx.waker().clone());
        Ok(())
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for ClosableConnection<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_open(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for ClosableConnection<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_open(cx)?;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_open(cx)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_open(cx)?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
