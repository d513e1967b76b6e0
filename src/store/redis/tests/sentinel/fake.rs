//! A sentinel that says what a test tells it to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

pub(in super::super) struct FakeSentinel {
    port: u16,
    says: Arc<Says>,
}

struct Says {
    master: Mutex<u16>,
    flags: Mutex<&'static str>,
    down_after: Mutex<&'static str>,
    epoch: Mutex<&'static str>,
    hangs: AtomicBool,
    /// How many ms each of its answers takes.
    delay: AtomicU64,
    /// Channel and text.
    words: broadcast::Sender<(&'static str, String)>,
}

impl Says {
    fn of(master: u16) -> Arc<Self> {
        let (words, _) = broadcast::channel(16);
        // So long that nobody asks again because of it.
        let (flags, down_after) = (Mutex::new("master"), Mutex::new("600000"));
        let (master, epoch) = (Mutex::new(master), Mutex::new("0"));
        let (hangs, delay) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { master, flags, down_after, epoch, hangs, delay, words })
    }
}

impl FakeSentinel {
    pub(in super::super) async fn of(master: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let says = Says::of(master);
        let told = Arc::clone(&says);
        crate::store::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                crate::store::spawn(serve(client, Arc::clone(&told)));
            }
        });
        Self { port, says }
    }

    /// Takes connections and never answers.
    pub(super) async fn hanging() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        crate::store::spawn(async move {
            let mut clients = Vec::new();
            while let Ok((client, _)) = listener.accept().await {
                clients.push(client);
            }
        });
        Self { port, says: Says::of(0) }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(in super::super) fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/mymaster?ns=test", self.port)
    }

    /// The master from now on.
    pub(in super::super) fn name(&self, master: u16) {
        *self.says.master.lock() = master;
    }

    /// What it tells of the master beside its address.
    pub(super) fn flags(&self, flags: &'static str) {
        *self.says.flags.lock() = flags;
    }

    /// After how many ms of silence it takes the master for gone.
    pub(super) fn down_after(&self, millis: &'static str) {
        *self.says.down_after.lock() = millis;
    }

    /// Number of the configuration that it names its master by.
    pub(super) fn epoch(&self, epoch: &'static str) {
        *self.says.epoch.lock() = epoch;
    }

    /// It takes so long for each answer from now on.
    pub(super) fn delay(&self, millis: u64) {
        self.says.delay.store(millis, Ordering::SeqCst);
    }

    /// From now on it takes questions and answers none.
    pub(super) fn hang(&self) {
        self.says.hangs.store(true, Ordering::SeqCst);
    }

    /// How many hear its words.
    pub(super) fn heard_by(&self) -> usize {
        self.says.words.receiver_count()
    }

    pub(super) fn say(&self, channel: &'static str, text: String) {
        self.says.words.send((channel, text)).expect("somebody hears it");
    }
}

async fn serve(client: TcpStream, says: Arc<Says>) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let words = command(&mut client).await?;
        if says.hangs.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        match says.delay.load(Ordering::SeqCst) {
            0 => {}
            millis => tokio::time::sleep(Duration::from_millis(millis)).await,
        }
        let (port, flags) = (says.master.lock().to_string(), *says.flags.lock());
        let (down_after, epoch) = (*says.down_after.lock(), *says.epoch.lock());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match words.as_slice() {
            ["SENTINEL", "MASTER", "mymaster"] => {
                let first = ["name", "mymaster", "ip", "127.0.0.1", "port", &port, "flags", flags];
                let then = ["config-epoch", epoch, "down-after-milliseconds", down_after];
                list(&[first.as_slice(), &then].concat().into_iter().map(bulk).collect::<Vec<_>>())
            }
            ["SUBSCRIBE", channels @ ..] => {
                return tell(client, channels, says.words.subscribe()).await;
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

/// Whoever subscribes asks nothing more.
async fn tell(
    mut client: BufReader<TcpStream>,
    channels: &[&str],
    mut words: broadcast::Receiver<(&'static str, String)>,
) -> Option<()> {
    for channel in channels {
        let answer = format!("*3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(channel));
        client.write_all(answer.as_bytes()).await.ok()?;
    }
    loop {
        let (channel, text) = tokio::select! {
            word = words.recv() => word.ok()?,
            // It has gone.
            _ = client.fill_buf() => return None,
        };
        let message = list(&[bulk("message"), bulk(channel), bulk(&text)]);
        client.write_all(message.as_bytes()).await.ok()?;
    }
}

/// A server that is written down: the answer to each command; whoever gets none is left. Its port.
pub(in super::super) async fn scripted(
    answer: impl Fn(&[&str]) -> Option<String> + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let answer = Arc::new(answer);
    crate::store::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            crate::store::spawn(async move {
                let mut client = BufReader::new(client);
                while let Some(words) = command(&mut client).await {
                    let text = answer(&words.iter().map(String::as_str).collect::<Vec<_>>());
                    let Some(text) = text else { return };
                    if client.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// What a server of today answers whoever connects, with these facts; and anything else.
pub(in super::super) fn greets(words: &[&str], facts: &str) -> String {
    match words {
        ["HELLO", ..] => "%1\r\n+proto\r\n:3\r\n".to_owned(),
        ["INFO", ..] => bulk(facts),
        ["HDEL" | "EXISTS", ..] => ":0\r\n".to_owned(),
        ["HMGET", ..] => "*2\r\n$4\r\n2064\r\n$-1\r\n".to_owned(),
        ["PING", ..] => "+PONG\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    }
}

/// One command, or `None` at the end.
pub(in super::super) async fn command(
    client: &mut BufReader<impl AsyncRead + Unpin>,
) -> Option<Vec<String>> {
    let words = crate::store::tests::command(client).await?;
    words.into_iter().map(|word| String::from_utf8(word).ok()).collect()
}

pub(in super::super) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

pub(in super::super) fn list(parts: &[String]) -> String {
    format!("*{}\r\n{}", parts.len(), parts.concat())
}
