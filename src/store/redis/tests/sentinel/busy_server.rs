//! Server that is blocked by a script while a connection to it is made. It cannot identify itself:
//! it is no new server, and does not deny `INFO`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{
    super::{wait_until, wait_until_usable},
    FakeSentinel, SECOND, ServerProcess,
};
use crate::store::{
    Store,
    key_names::COMMON_SHARD,
    redis::{
        connection_source::{ConnectionOverrides, ConnectionSource},
        server_info::ServerInfo,
        target::TimeoutAndDisconnectFlag,
    },
};

const BUSY_ERROR: &[u8] = b"-BUSY Redis is busy running a script.\r\n";

/// Proxy that refuses `INFO` in place of its server while it is set to.
#[derive(Clone)]
struct InfoRefusingProxy {
    port: u16,
    refuses_info: Arc<AtomicBool>,
    refused_count: Arc<AtomicUsize>,
    cut_signal: Arc<watch::Sender<u64>>,
}

impl InfoRefusingProxy {
    async fn start_in_front_of(server: &ServerProcess) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let proxy = Self {
            port,
            refuses_info: Arc::default(),
            refused_count: Arc::default(),
            cut_signal: Arc::default(),
        };
        let (own, server) = (proxy.clone(), server.port());
        crate::store::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                crate::store::spawn(own.clone().forward_connection(client, server));
            }
        });
        proxy
    }

    fn set_refuses_info(&self, refuses: bool) {
        self.refuses_info.store(refuses, Ordering::SeqCst);
    }

    fn refused_count(&self) -> usize {
        self.refused_count.load(Ordering::SeqCst)
    }

    async fn forward_connection(self, mut client: TcpStream, server: u16) -> Option<()> {
        let mut cut = self.cut_signal.subscribe();
        let mut server = TcpStream::connect(("127.0.0.1", server)).await.ok()?;
        let (mut request, mut reply) = ([0; 65536], [0; 65536]);
        loop {
            tokio::select! {
                _ = cut.changed() => return None,
                n = client.read(&mut request) => {
                    let n = n.ok().filter(|n| *n > 0)?;
                    let is_info = request[..n].windows(8).any(|part| part == b"\r\nINFO\r\n");
                    if is_info && self.refuses_info.load(Ordering::SeqCst) {
                        self.refused_count.fetch_add(1, Ordering::SeqCst);
                        client.write_all(BUSY_ERROR).await.ok()?;
                    } else {
                        server.write_all(&request[..n]).await.ok()?;
                    }
                }
                n = server.read(&mut reply) => {
                    let n = n.ok().filter(|n| *n > 0)?;
                    client.write_all(&reply[..n]).await.ok()?;
                }
            }
        }
    }
}

/// Behind sentinels, a server without `INFO` is identified by its address. So it would count as a
/// new one twice: when it cannot answer, and when it can again.
#[tokio::test]
async fn server_busy_during_handshake_is_not_a_new_server() {
    let server = ServerProcess::start().await;
    let proxy = InfoRefusingProxy::start_in_front_of(&server).await;
    let sentinel = FakeSentinel::monitoring(proxy.port).await;
    let store = Store::builder(&sentinel.url()).call_timeout(4 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    wait_until_usable(&store).await;
    let guard = store.lock("x").lease(60 * SECOND).acquire().await.expect("it is free");
    let generation = store.backend().server_generation();
    proxy.set_refuses_info(true);
    proxy.cut_signal.send_modify(|cut| *cut += 1);
    // The store is unavailable meanwhile: the server of the connection is not identified.
    wait_until("it to be asked", async || {
        let _ = store.ping().await;
        proxy.refused_count() > 0
    })
    .await;
    proxy.set_refuses_info(false);
    wait_until_usable(&store).await;
    assert_eq!(store.backend().server_generation(), generation, "the server counts as replaced");
    assert_eq!(guard.release().await, crate::lock::ReleaseStatus::Released);
}

/// The `BUSY` error of a real server.
#[tokio::test]
async fn server_info_fails_while_script_blocks_server() {
    let server = ServerProcess::start().await;
    server.command(&["CONFIG", "SET", "lua-time-limit", "1"]).await;
    let (target, _) = ConnectionSource::Url(server.url())
        .into_target(ConnectionOverrides::default(), SECOND)
        .expect("a URL");
    let opened = target.open(COMMON_SHARD, &TimeoutAndDisconnectFlag::default()).await;
    let mut connection = opened.ok().expect("it is there").connection;
    let run_script = async {
        let ended = server.try_query::<redis::Value>(&["EVAL", "while true do end", "0"]).await;
        ended.expect_err("it was killed");
    };
    let query_server = async {
        wait_until("it to be busy", async || {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let busy = redis::cmd("PING").query_async::<String>(&mut connection).await;
            busy.is_err_and(|error| error.code() == Some("BUSY"))
        })
        .await;
        assert!(ServerInfo::fetch(&mut connection).await.is_err(), "the server refuses `INFO`");
        server.command(&["SCRIPT", "KILL"]).await;
        wait_until("it to answer", async || {
            redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
        })
        .await;
        let info = ServerInfo::fetch(&mut connection).await.ok().expect("it can answer");
        assert!(info.identity(None).is_some());
    };
    tokio::join!(run_script, query_server);
}
