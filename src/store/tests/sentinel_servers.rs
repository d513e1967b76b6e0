//! A master with sentinels, shared by all tests of this process. A static is never dropped, so the
//! servers end by themselves when this process has ended.

use std::{
    path::{Path, PathBuf},
    process::Child,
    time::Duration,
};

use tokio::sync::OnceCell;

use super::test_cluster::{free_port, supervised_server_command, temporary_server_directory};

static SHARED_SENTINELS: OnceCell<SentinelServers> = OnceCell::const_new();

pub(super) struct SentinelServers {
    master_port: u16,
    sentinel_ports: Vec<u16>,
    _processes: Vec<Child>,
}

impl SentinelServers {
    /// Returns the shared servers. No test may disturb them.
    pub(super) async fn shared() -> &'static Self {
        SHARED_SENTINELS.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let master = free_port();
        let mut server = supervised_server_command(&temporary_server_directory());
        server.args(["--port", &master.to_string(), "--bind", "127.0.0.1"]);
        server.args(["--save", "", "--appendonly", "no"]);
        let mut processes =
            vec![server.spawn().expect("these tests need a shell and a redis-server")];
        let sentinels: Vec<u16> = (0..3).map(|_| free_port()).collect();
        processes.extend(sentinels.iter().map(|sentinel_port| {
            let directory = temporary_server_directory();
            let mut sentinel = supervised_server_command(&directory);
            sentinel.arg(write_config(&directory, *sentinel_port, master)).arg("--sentinel");
            sentinel.spawn().expect("these tests need a shell and a redis-server")
        }));
        let servers =
            Self { master_port: master, sentinel_ports: sentinels, _processes: processes };
        for port in std::iter::once(&servers.master_port).chain(&servers.sentinel_ports) {
            wait_until_listening(*port).await;
        }
        servers
    }

    pub(super) fn master_port(&self) -> u16 {
        self.master_port
    }

    pub(super) fn url(&self) -> String {
        let nodes: Vec<_> =
            self.sentinel_ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/mymaster", nodes.join(","))
    }
}

fn write_config(directory: &Path, port: u16, master: u16) -> PathBuf {
    let file = directory.join("sentinel.conf");
    // A high timeout, because the master may stall on a busy machine.
    let text = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\n\
         sentinel monitor mymaster 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds mymaster 60000\n",
        directory.display()
    );
    std::fs::write(&file, text).expect("the temporary directory is writable");
    file
}

async fn wait_until_listening(port: u16) {
    let client = redis::Client::open(("127.0.0.1", port)).expect("an address");
    for _ in 0..1000 {
        if client.get_multiplexed_async_connection().await.is_ok() {
            return;
        }
        // A process does not report that it listens.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("redis-server on port {port} does not answer");
}
