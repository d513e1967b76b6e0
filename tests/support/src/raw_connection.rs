//! `RawConnection`: a socket for bytes that no HTTP client would send, and for clients that
//! disconnect.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::wait::with_timeout;

/// A connection whose bytes the test writes itself. Dropping it closes it.
#[derive(Debug)]
pub struct RawConnection(TcpStream);

impl RawConnection {
    /// Opens a connection.
    ///
    /// # Panics
    ///
    /// If it is refused.
    pub async fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.expect("the site listens");
        stream.set_nodelay(true).expect("a TCP socket");
        Self(stream)
    }

    /// Sends bytes unchanged.
    ///
    /// # Panics
    ///
    /// If the connection is closed.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        let sent = self.0.write_all(bytes.as_ref()).await;
        sent.expect("the connection is open");
    }

    /// Reads until this text has arrived.
    ///
    /// # Panics
    ///
    /// If the connection ends first.
    pub async fn read_until(&mut self, text: &str) -> String {
        let mut bytes = Vec::new();
        let what = format!("`{text}` in an answer");
        with_timeout(&what, async {
            while !String::from_utf8_lossy(&bytes).contains(text) {
                // Byte by byte, so that later bytes stay in the socket.
                let read = self.0.read_u8().await;
                bytes.push(read.expect("the connection is open"));
            }
        })
        .await;
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends bytes one at a time, with this interval, and then nothing. Reads meanwhile, until the
    /// peer closes.
    pub async fn write_slowly(&mut self, bytes: &str, interval: Duration) -> String {
        let (mut reader, mut writer) = self.0.split();
        let send_slowly = async {
            for byte in bytes.bytes() {
                tokio::time::sleep(interval).await;
                // The peer may have closed the connection.
                let _ = writer.write_all(&[byte]).await;
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        let read = with_timeout("the end of the connection", reader.read_to_end(&mut answer));
        tokio::select! {
            _ = read => {}
            () = send_slowly => {}
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Reads until the peer closes. A reset counts as closed: the server need not read everything.
    pub async fn read_to_end(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = with_timeout("the end of the connection", self.0.read_to_end(&mut bytes)).await;
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
