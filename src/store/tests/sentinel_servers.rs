//! A master that sentinels watch, for all tests of this process: nothing ends a static, so its processes end by
//! themselves when this one has.

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
    /// Which no test may treat badly.
    pub(super) async fn shared() -> &'static Self {
        SHARED_SENTINELS.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let master = free_port();
        let mut server = supervised_server_command(&temporary_server_directory());
        server.args(["--port", &master.to_string(), "--bind", "127.0.0.1"]);
        server.args(["--save", "", "--appendonly", "no"]);
        let mut keepers =
            vec![server.spawn().expect("these tests need a shell and a redis-server")];
        let sentinels: Vec<u16> = (0..3).map(|_| free_port()).collect();
        keepers.extend(sentinels.iter().map(|own| {
            let directory = temporary_server_directory();
            let mut sentinel = supervised_server_command(&directory);
            sentinel.arg(write_config(&directory, *own, master)).arg("--sentinel");
            sentinel.spawn().expect("these tests need a shell and a redis-server")
        }));
        let all = Self { master_port: master, sentinel_ports: sentinels, _processes: keepers };
        for port in std::iter::once(&all.master_port).chain(&all.sentinel_ports) {
            wait_until_listening(*port).await;
        }
        all
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

fn write_config(directory: &Path, own: u16, master: u16) -> PathBuf {
    let file = directory.join("sentinel.conf");
    // It stands still when the machine is busy, and is no worse for it.
    let text = format!(
        "port {own}\nbind 127.0.0.1\ndir {}\n\
         sentinel monitor mymaster 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds mymaster 60000\n",
        directory.display()
    );
    std::fs::write(&file, text).expect("a place for temporary files");
    file
}

async fn wait_until_listening(port: u16) {
    let client = redis::Client::open(("127.0.0.1", port)).expect("an address");
    for _ in 0..1000 {
        if client.get_multiplexed_async_connection().await.is_ok() {
            return;
        }
        // A process tells nobody when it starts to listen.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("redis-server on port {port} does not answer");
}
