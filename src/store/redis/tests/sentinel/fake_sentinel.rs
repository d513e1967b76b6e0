//! `FakeSentinel`: a sentinel that answers as a test sets it.

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
    /// Delay of each answer, in ms.
    reply_delay_ms: AtomicU64,
    /// Channel and text of each event.
    events: broadcast::Sender<(&'static str, String)>,
}

impl SentinelState {
    fn for_master(master: u16) -> Arc<Self> {
        let (events, _) = broadcast::channel(16);
        // So long that it causes no polls.
        let (flags, down_after) = (Mutex::new("master"), Mutex::new("600000"));
        let (master, epoch) = (Mutex::new(master), Mutex::new("0"));
        let (is_hanging, reply_delay_ms) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { master, flags, down_after, epoch, is_hanging, reply_delay_ms, events })
    }
}

impl FakeSentinel {
    pub(in super::super) async fn monitoring(master: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let state = SentinelState::for_master(master);
        let shared_state = Arc::clone(&state);
        crate::store::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                crate::store::spawn(serve_client(client, Arc::clone(&shared_state)));
            }
        });
        Self { port, state }
    }

    /// Accepts connections and never answers.
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

    /// Sets the master that is named from now on.
    pub(in super::super) fn set_master(&self, master: u16) {
        *self.state.master.lock() = master;
    }

    /// Sets the flags of the master.
    pub(super) fn set_flags(&self, flags: &'static str) {
        *self.state.flags.lock() = flags;
    }

    /// Sets the silence, in ms, after which the master counts as down.
    pub(super) fn set_down_after(&self, millis: &'static str) {
        *self.state.down_after.lock() = millis;
    }

    /// Sets the configuration epoch of the master.
    pub(super) fn set_epoch(&self, epoch: &'static str) {
        *self.state.epoch.lock() = epoch;
    }

    /// Sets the delay of each answer from now on.
    pub(super) fn set_delay(&self, millis: u64) {
        self.state.reply_delay_ms.store(millis, Ordering::SeqCst);
    }

    /// Accepts commands and answers none from now on.
    pub(super) fn stop_answering(&self) {
        self.state.is_hanging.store(true, Ordering::SeqCst);
    }

    /// Returns the number of clients that are subscribed to events.
    pub(super) fn subscriber_count(&self) -> usize {
        self.state.events.receiver_count()
    }

    pub(super) fn publish_event(&self, channel: &'static str, text: String) {
        self.state.events.send((channel, text)).expect("the event has a subscriber");
    }
}

async fn serve_client(client: TcpStream, state: Arc<SentinelState>) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let args = read_command(&mut client).await?;
        if state.is_hanging.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        match state.reply_delay_ms.load(Ordering::SeqCst) {
            0 => {}
            millis => tokio::time::sleep(Duration::from_millis(millis)).await,
        }
        let (port, flags) = (state.master.lock().to_string(), *state.flags.lock());
        let (down_after, epoch) = (*state.down_after.lock(), *state.epoch.lock());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let reply = match args.as_slice() {
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
                return forward_events(client, channels, state.events.subscribe()).await;
            }
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"] => {
                array_reply(&[bulk_string("127.0.0.1"), bulk_string(&port)])
            }
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => "*-1\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        client.write_all(reply.as_bytes()).await.ok()?;
    }
}

/// A subscribed client sends no further commands.
async fn forward_events(
    mut client: BufReader<TcpStream>,
    channels: &[&str],
    mut events: broadcast::Receiver<(&'static str, String)>,
) -> Option<()> {
    for channel in channels {
        let confirmation =
            format!("*3\r\n{}{}:1\r\n", bulk_string("subscribe"), bulk_string(channel));
        client.write_all(confirmation.as_bytes()).await.ok()?;
    }
    loop {
        let (channel, text) = tokio::select! {
            event = events.recv() => event.ok()?,
            // The client has disconnected.
            _ = client.fill_buf() => return None,
        };
        let message =
            array_reply(&[bulk_string("message"), bulk_string(channel), bulk_string(&text)]);
        client.write_all(message.as_bytes()).await.ok()?;
    }
}

/// Starts a server that sends the scripted reply to each command, and disconnects if there is none.
/// Returns its port.
pub(in super::super) async fn start_scripted_server(
    reply_to: impl Fn(&[&str]) -> Option<String> + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let reply_to = Arc::new(reply_to);
    crate::store::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let reply_to = Arc::clone(&reply_to);
            crate::store::spawn(async move {
                let mut client = BufReader::new(client);
                while let Some(args) = read_command(&mut client).await {
                    let text = reply_to(&args.iter().map(String::as_str).collect::<Vec<_>>());
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

/// Returns the handshake replies of a current server with these `INFO` properties. Other commands
/// get `+OK`.
pub(in super::super) fn handshake_reply(args: &[&str], info: &str) -> String {
    match args {
        ["HELLO", ..] => "%1\r\n+proto\r\n:3\r\n".to_owned(),
        ["INFO", ..] => bulk_string(info),
        ["HDEL" | "EXISTS", ..] => ":0\r\n".to_owned(),
        ["HMGET", ..] => "*2\r\n$4\r\n2064\r\n$-1\r\n".to_owned(),
        ["PING", ..] => "+PONG\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    }
}

/// Reads one command. Returns `None` at the end of the stream.
pub(in super::super) async fn read_command(
    client: &mut BufReader<impl AsyncRead + Unpin>,
) -> Option<Vec<String>> {
    let args = crate::store::tests::read_command(client).await?;
    args.into_iter().map(|arg| String::from_utf8(arg).ok()).collect()
}

pub(in super::super) fn bulk_string(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

pub(in super::super) fn array_reply(parts: &[String]) -> String {
    format!("*{}\r\n{}", parts.len(), parts.concat())
}
