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
    state: Arc<SentinelState>,
}

struct SentinelState {
    master: Mutex<u16>,
    flags: Mutex<&'static str>,
    down_after: Mutex<&'static str>,
    epoch: Mutex<&'static str>,
    is_hanging: AtomicBool,
    /// How many ms each of its answers takes.
    reply_delay_ms: AtomicU64,
    /// Channel and text.
    events: broadcast::Sender<(&'static str, String)>,
}

impl SentinelState {
    fn for_master(master: u16) -> Arc<Self> {
        let (words, _) = broadcast::channel(16);
        // So long that nobody asks again because of it.
        let (flags, down_after) = (Mutex::new("master"), Mutex::new("600000"));
        let (master, epoch) = (Mutex::new(master), Mutex::new("0"));
        let (hangs, delay) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self {
            master,
            flags,
            down_after,
            epoch,
            is_hanging: hangs,
            reply_delay_ms: delay,
            events: words,
        })
    }
}

impl FakeSentinel {
    pub(in super::super) async fn monitoring(master: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let says = SentinelState::for_master(master);
        let told = Arc::clone(&says);
        crate::store::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                crate::store::spawn(serve_client(client, Arc::clone(&told)));
            }
        });
        Self { port, state: says }
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
        Self { port, state: SentinelState::for_master(0) }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(in super::super) fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/mymaster?ns=test", self.port)
    }

    /// The master from now on.
    pub(in super::super) fn set_master(&self, master: u16) {
        *self.state.master.lock() = master;
    }

    /// What it tells of the master beside its address.
    pub(super) fn set_flags(&self, flags: &'static str) {
        *self.state.flags.lock() = flags;
    }

    /// After how many ms of silence it takes the master for gone.
    pub(super) fn set_down_after(&self, millis: &'static str) {
        *self.state.down_after.lock() = millis;
    }

    /// Number of the configuration that it names its master by.
    pub(super) fn set_epoch(&self, epoch: &'static str) {
        *self.state.epoch.lock() = epoch;
    }

    /// It takes so long for each answer from now on.
    pub(super) fn set_delay(&self, millis: u64) {
        self.state.reply_delay_ms.store(millis, Ordering::SeqCst);
    }

    /// From now on it takes questions and answers none.
    pub(super) fn stop_answering(&self) {
        self.state.is_hanging.store(true, Ordering::SeqCst);
    }

    /// How many hear its words.
    pub(super) fn subscriber_count(&self) -> usize {
        self.state.events.receiver_count()
    }

    pub(super) fn publish_event(&self, channel: &'static str, text: String) {
        self.state.events.send((channel, text)).expect("somebody hears it");
    }
}

async fn serve_client(client: TcpStream, says: Arc<SentinelState>) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let words = read_command(&mut client).await?;
        if says.is_hanging.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        match says.reply_delay_ms.load(Ordering::SeqCst) {
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
                array_reply(
                    &[first.as_slice(), &then]
                        .concat()
                        .into_iter()
                        .map(bulk_string)
                        .collect::<Vec<_>>(),
                )
            }
            ["SUBSCRIBE", channels @ ..] => {
                return forward_events(client, channels, says.events.subscribe()).await;
            }
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"] => {
                array_reply(&[bulk_string("127.0.0.1"), bulk_string(&port)])
            }
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => "*-1\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        client.write_all(answer.as_bytes()).await.ok()?;
    }
}

/// Whoever subscribes asks nothing more.
async fn forward_events(
    mut client: BufReader<TcpStream>,
    channels: &[&str],
    mut words: broadcast::Receiver<(&'static str, String)>,
) -> Option<()> {
    for channel in channels {
        let answer = format!("*3\r\n{}{}:1\r\n", bulk_string("subscribe"), bulk_string(channel));
        client.write_all(answer.as_bytes()).await.ok()?;
    }
    loop {
        let (channel, text) = tokio::select! {
            word = words.recv() => word.ok()?,
            // It has gone.
            _ = client.fill_buf() => return None,
        };
        let message =
            array_reply(&[bulk_string("message"), bulk_string(channel), bulk_string(&text)]);
        client.write_all(message.as_bytes()).await.ok()?;
    }
}

/// A server that is written down: the answer to each command; whoever gets none is left. Its port.
pub(in super::super) async fn start_scripted_server(
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
                while let Some(words) = read_command(&mut client).await {
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
pub(in super::super) fn handshake_reply(words: &[&str], facts: &str) -> String {
    match words {
        ["HELLO", ..] => "%1\r\n+proto\r\n:3\r\n".to_owned(),
        ["INFO", ..] => bulk_string(facts),
        ["HDEL" | "EXISTS", ..] => ":0\r\n".to_owned(),
        ["HMGET", ..] => "*2\r\n$4\r\n2064\r\n$-1\r\n".to_owned(),
        ["PING", ..] => "+PONG\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    }
}

/// One command, or `None` at the end.
pub(in super::super) async fn read_command(
    client: &mut BufReader<impl AsyncRead + Unpin>,
) -> Option<Vec<String>> {
    let words = crate::store::tests::read_command(client).await?;
    words.into_iter().map(|word| String::from_utf8(word).ok()).collect()
}

pub(in super::super) fn bulk_string(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

pub(in super::super) fn array_reply(parts: &[String]) -> String {
    format!("*{}\r\n{}", parts.len(), parts.concat())
}
