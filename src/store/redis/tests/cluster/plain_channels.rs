//! Cluster nodes without sharded channels, as before Redis 7.0. They are scripted, since the tests'
//! server may be newer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{
    super::sentinel::fake_sentinel::{bulk_string, read_command},
    wakeup_listener::{SECOND, WakeupListener},
};
use crate::{
    key::Key,
    store::{Store, backend::JobId, wakeup_message::WakeupMessage},
};

/// Subscriptions to all nodes together.
#[derive(Default)]
struct SubscriptionCounts {
    /// Subscriptions so far. `open_now` and `max_open` count the open ones.
    total: AtomicUsize,
    open_now: AtomicUsize,
    max_open: AtomicUsize,
}

/// Returns the job offer that the n-th subscriber receives.
fn offer_of_subscriber(n: usize) -> (Key, JobId) {
    let key = Key::custom(&n.to_string());
    let id = format!("{:02x}{:032x}", key.shard(), n);
    (key, JobId::parse(&id).expect("an id"))
}

async fn serve_client(
    client: TcpStream,
    ports: [u16; 2],
    counts: Arc<SubscriptionCounts>,
) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let args = read_command(&mut client).await?;
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let reply = match args.as_slice() {
            ["HELLO", ..] => "%1\r\n+proto\r\n:3\r\n".to_owned(),
            ["CLUSTER", "SLOTS"] => {
                let slot_range = |from: u16, to: u16, port: u16| {
                    format!(
                        "*3\r\n:{from}\r\n:{to}\r\n*2\r\n{}:{port}\r\n",
                        bulk_string("127.0.0.1")
                    )
                };
                format!(
                    "*2\r\n{}{}",
                    slot_range(0, 8191, ports[0]),
                    slot_range(8192, 16_383, ports[1])
                )
            }
            ["SUBSCRIBE", channels @ ..] => {
                return send_offer(client.into_inner(), channels, &counts).await;
            }
            ["CLIENT", ..] => "+OK\r\n".to_owned(),
            [name, ..] => format!("-ERR unknown command `{name}`, with args beginning with: \r\n"),
            [] => return None,
        };
        client.write_all(reply.as_bytes()).await.ok()?;
    }
}

/// Confirms a subscription and sends one offer. The first subscriber is disconnected after it.
async fn send_offer(
    mut client: TcpStream,
    channels: &[&str],
    counts: &SubscriptionCounts,
) -> Option<()> {
    let n = counts.total.fetch_add(1, Ordering::SeqCst);
    counts.max_open.fetch_max(counts.open_now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    let push = |parts: [&str; 3]| format!(">3\r\n{}", parts.map(bulk_string).concat());
    for channel in channels {
        let confirmed = format!(">3\r\n{}{}:1\r\n", bulk_string("subscribe"), bulk_string(channel));
        client.write_all(confirmed.as_bytes()).await.ok()?;
    }
    let (key, id) = offer_of_subscriber(n);
    let wakeup_channel = channels.iter().find(|channel| channel.contains(":w:"))?;
    let message = push(["message", wakeup_channel, &format!("j {key} {id}")]);
    client.write_all(message.as_bytes()).await.ok()?;
    if n > 0 {
        std::future::pending::<()>().await;
    }
    counts.open_now.fetch_sub(1, Ordering::SeqCst);
    None
}

#[tokio::test]
async fn without_shard_channels_one_node_is_subscribed_at_a_time() {
    let counts = Arc::<SubscriptionCounts>::default();
    let bind = async || TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let nodes = [bind().await, bind().await];
    let ports = nodes.each_ref().map(|node| node.local_addr().expect("it is bound").port());
    for node in nodes {
        let counts = Arc::clone(&counts);
        crate::store::spawn(async move {
            while let Ok((client, _)) = node.accept().await {
                crate::store::spawn(serve_client(client, ports, Arc::clone(&counts)));
            }
        });
    }
    let url = format!("redis+cluster://127.0.0.1:{}/?ns=older", ports[0]);
    let store =
        Store::builder(&url).call_timeout(5 * SECOND).connect().await.expect("the URL is right");
    let mut listener = WakeupListener::new(&store).await;
    for n in 0..2 {
        let (key, id) = offer_of_subscriber(n);
        listener.wait_for_message(&WakeupMessage::JobOffer(key, id)).await;
    }
    assert_eq!(counts.max_open.load(Ordering::SeqCst), 1, "one subscription receives all messages");
}
