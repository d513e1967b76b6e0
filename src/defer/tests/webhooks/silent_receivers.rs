//! Webhooks of one owner to silent receivers beside those of another owner, over real sockets.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};

use super::{
    super::{CountingReplayer, send_enqueue},
    webhook_command_to,
};
use crate::{
    defer::{Webhooks, tests::DeferWorker},
    store::{EnqueueCommand, Store},
};

const RECEIVER_COUNT: usize = 40;
const SILENT_CALL_COUNT: usize = 400;

/// Far below the duration of 400 silent calls, which delayed another owner's calls by more than 75
/// s; far above the pauses of a loaded machine.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Listeners that never answer; the kernel completes their connections.
async fn silent_listeners() -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for _ in 0..RECEIVER_COUNT {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        addresses.push(listener.local_addr().expect("it is bound"));
        listeners.push(listener);
    }
    (listeners, addresses)
}

/// Spawns a server that answers each call with 204 and reports it.
async fn spawn_receiver() -> (SocketAddr, mpsc::UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.2:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (report, calls) = mpsc::unbounded_channel();
    crate::store::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let report = report.clone();
            crate::store::spawn(async move {
                let mut read = Vec::new();
                while !read.ends_with(b"}") {
                    read.push(socket.read_u8().await.ok()?);
                }
                socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.ok()?;
                report.send(()).ok()
            });
        }
    });
    (address, calls)
}

async fn enqueue_webhook_job(store: &Store, target: &str, at: SocketAddr, owner: &str) {
    let call = webhook_command_to(store, target, &format!("http://{at}/hook"));
    send_enqueue(store, EnqueueCommand { owner: owner.to_owned(), ..call }).await;
}

#[tokio::test]
async fn silent_receivers_of_one_owner_do_not_delay_another() {
    let store = Store::memory();
    let (_listeners, silent) = silent_listeners().await;
    let (address, mut calls) = spawn_receiver().await;
    let mut worker = DeferWorker::new(&store, CountingReplayer::default());
    let webhooks = Webhooks::new("0123456789abcdef0123456789abcdef");
    worker.settings.webhooks = Some(Arc::new(webhooks.allow_http().allow_network("127.0.0.0/8")));
    let worker = crate::store::spawn(worker.run(std::future::pending()));
    for n in 0..SILENT_CALL_COUNT {
        enqueue_webhook_job(
            &store,
            &format!("/attack-{n}"),
            silent[n % RECEIVER_COUNT],
            "attacker",
        )
        .await;
    }
    // All jobs with silent receivers have ended, so their deliveries are in flight.
    while store.deferred_jobs().stats().await.expect("it is there").done < SILENT_CALL_COUNT as u64
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for n in 0..5 {
        enqueue_webhook_job(&store, &format!("/stranger-{n}"), address, "stranger").await;
    }
    let five = async {
        for _ in 0..5 {
            calls.recv().await.expect("the server is there");
        }
    };
    tokio::time::timeout(DELIVERY_TIMEOUT, five).await.expect("the stranger's calls are made");
    worker.abort();
}
