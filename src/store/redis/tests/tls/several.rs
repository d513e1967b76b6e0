//! TLS where there are several servers: to sentinels and the master they name, and to all nodes of a cluster.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::{
    super::{SECOND, server::free_port, usable},
    Certificates, FILES, lacks_tls, mistake,
};
use crate::{
    lock::ReleaseStatus,
    store::{Store, StoreBuilder, tests::cluster::Cluster},
};

/// A process that ends when it is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("these tests need a redis-server that was built with TLS"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that talks TLS alone, also to those that it follows.
fn server(certificates: &Certificates, port: u16, follows: Option<u16>) -> Process {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
    let folder = certificates.path(&port.to_string());
    std::fs::create_dir(&folder).expect("a place for temporary files");
    command.arg("--dir").arg(folder).args(certificates.words());
    command.args(["--tls-auth-clients", "no", "--tls-replication", "yes"]);
    if let Some(port) = follows {
        command.args(["--replicaof", "127.0.0.1", &port.to_string()]);
    }
    Process::start(&mut command)
}

/// One whose word is enough.
fn sentinel(certificates: &Certificates, port: u16, master: u16) -> Process {
    let file = certificates.path(&format!("{port}.conf"));
    let mut text = format!(
        "port 0\ntls-port {port}\nbind 127.0.0.1\ntls-auth-clients no\ntls-replication yes\n\
         sentinel monitor mymaster 127.0.0.1 {master} 1\n\
         sentinel down-after-milliseconds mymaster 60000\n\
         sentinel failover-timeout mymaster 5000\n"
    );
    for [setting, name] in FILES {
        text += &format!("{setting} {}\n", certificates.path(name).display());
    }
    std::fs::write(&file, text).expect("a place for temporary files");
    Process::start(Command::new("redis-server").arg(&file).arg("--sentinel"))
}

async fn is_served(store: &Store) {
    let held = store.lock("x").acquire().await.expect("it is free");
    let other = store.as_another_process();
    let waiter = crate::store::spawn(other.lock("x").wait(20 * SECOND).acquire());
    tokio::task::yield_now().await;
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let served = waiter.await.expect("no panic").expect("it is served");
    assert_eq!(served.release().await, ReleaseStatus::Released);
}

fn trusting(builder: StoreBuilder, certificates: &Certificates, authority: &str) -> StoreBuilder {
    builder.call_timeout(5 * SECOND).ca_certificate(certificates.read(authority))
}

#[tokio::test]
async fn sentinels_and_the_master_they_name_talk_tls() {
    if lacks_tls() {
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = Certificates::make();
    let [first, second, own] = [free_port(), free_port(), free_port()];
    let _master = server(&certificates, first, None);
    let _replica = server(&certificates, second, Some(first));
    let _sentinel = sentinel(&certificates, own, first);
    let url = format!("rediss+sentinel://127.0.0.1:{own}/mymaster?ns=test");
    let builder = |authority| trusting(Store::builder(&url), &certificates, authority);
    let store = builder("ca.crt").connect().await.expect("the settings are right");
    usable(&store).await;
    is_served(&store).await;
    // The sentinel itself is not believed if its certificate is not.
    let text = mistake(builder("other.crt")).await;
    assert!(text.contains("is not trusted"), "{text}");
    // Replicas follow by TLS, too.
    let granted = async { while store.lock("y").min_replicas(1).acquire().await.is_err() {} };
    tokio::time::timeout(40 * SECOND, granted).await.expect("the replica follows by TLS");
}

#[tokio::test]
async fn all_nodes_of_a_cluster_talk_tls() {
    if lacks_tls() {
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = Certificates::make();
    let mut words = certificates.words();
    words.extend(["--tls-auth-clients", "no", "--tls-cluster", "yes"].map(str::to_owned));
    let cluster = Cluster::start_with(3, false, Duration::from_secs(30), &words).await;
    let url = cluster.url_of_tls("tls");
    let builder = |authority| trusting(Store::builder(&url), &certificates, authority);
    let store = builder("ca.crt").connect().await.expect("the settings are right");
    usable(&store).await;
    // On each of the nodes, messages included.
    for key in super::super::cluster::keys(16) {
        let held = store.lock(key.clone()).acquire().await.expect("it is free");
        let other = store.as_another_process();
        let waiter = crate::store::spawn(other.lock(key).wait(20 * SECOND).acquire());
        tokio::task::yield_now().await;
        assert_eq!(held.release().await, ReleaseStatus::Released);
        waiter.await.expect("no panic").expect("it is served").release().await;
    }
    // A redirect leads to the port for TLS, too.
    let key = super::super::cluster::keys(1).remove(0);
    let slot = cluster.slot(key.shard()).await;
    let from = cluster.owner(slot).await;
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to).await;
    cluster.end_move(slot, from, to).await;
    let guard = store.lock(key).acquire().await.expect("it is found where it is");
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    let text = mistake(builder("other.crt")).await;
    assert!(text.contains("is not trusted"), "{text}");
}
