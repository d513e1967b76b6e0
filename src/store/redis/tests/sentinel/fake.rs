//! A sentinel that says what a test tells it to.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

pub(super) struct FakeSentinel {
    port: u16,
    master: Arc<Mutex<u16>>,
}

impl FakeSentinel {
    pub(super) async fn of(master: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let master = Arc::new(Mutex::new(master));
        let told = Arc::clone(&master);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, Arc::clone(&told)));
            }
        });
        Self { port, master }
    }

    /// Takes connections and never answers.
    pub(super) async fn hanging() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        tokio::spawn(async move {
            let mut clients = Vec::new();
            while let Ok((client, _)) = listener.accept().await {
                clients.push(client);
            }
        });
        Self { port, master: Arc::default() }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/mymaster?ns=test", self.port)
    }

    /// The master from now on.
    pub(super) fn name(&self, master: u16) {
        *self.master.lock() = master;
    }
}

async fn serve(client: TcpStream, master: Arc<Mutex<u16>>) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let words = command(&mut client).await?;
        let port = master.lock().to_string();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match words.as_slice() {
            ["ROLE"] => list(&[bulk("sentinel"), list(&[bulk("mymaster")])]),
            ["SENTINEL", "MASTERS"] => {
                let fields =
                    ["name", "mymaster", "ip", "127.0.0.1", "port", &port, "flags", "master"];
                list(&[list(&fields.map(bulk))])
            }
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"] => {
                list(&[bulk("127.0.0.1"), bulk(&port)])
            }
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => "*-1\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        client.write_all(answer.as_bytes()).await.ok()?;
    }
}

/// One command, or `None` at the end.
pub(in super::super) async fn command(client: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..number(client).await? {
        let mut word = vec![0; number(client).await? + 2];
        client.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

async fn number(client: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.trim_end().get(1..)?.parse().ok()
}

pub(in super::super) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn list(parts: &[String]) -> String {
    format!("*{}\r\n{}", parts.len(), parts.concat())
}
