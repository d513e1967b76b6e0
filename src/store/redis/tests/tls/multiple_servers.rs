//! TLS with several servers: with sentinels and the master that they name, and with all nodes of a
//! cluster.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::{
    super::{SECOND, server_process::free_port, wait_until_usable},
    SERVER_FILE_SETTINGS, TestCertificates, config_error_text, server_lacks_tls,
};
use crate::{
    lock::ReleaseStatus,
    store::{Store, StoreBuilder, tests::test_cluster::TestCluster},
};

/// Process that is killed when it is dropped.
struct TlsProcess(Child);

impl TlsProcess {
    fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("these tests need a redis-server that was built with TLS"))
    }
}

impl Drop for TlsProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server that accepts only TLS and replicates over TLS.
fn start_tls_server(certificates: &TestCertificates, port: u16, master: Option<u16>) -> TlsProcess {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
    let folder = certificates.path(&port.to_string());
    std::fs::create_dir(&folder).expect("the temporary directory is writable");
    command.arg("--dir").arg(folder).args(certificates.server_arguments());
    command.args(["--tls-auth-clients", "no", "--tls-replication", "yes"]);
    if let Some(port) = master {
        command.args(["--replicaof", "127.0.0.1", &port.to_string()]);
    }
    TlsProcess::start(&mut command)
}

/// Starts a sentinel with a quorum of 1.
fn start_tls_sentinel(certificates: &TestCertificates, port: u16, master: u16) -> TlsProcess {
    let file = certificates.path(&format!("{port}.conf"));
    let mut text = format!(
        "port 0\ntls-port {port}\nbind 127.0.0.1\ntls-auth-clients no\ntls-replication yes\n\
         sentinel monitor mymaster 127.0.0.1 {master} 1\n\
         sentinel down-after-milliseconds mymaster 60000\n\
         sentinel failover-timeout mymaster 5000\n"
    );
    for [setting, name] in SERVER_FILE_SETTINGS {
        text += &format!("{setting} {}\n", certificates.path(name).display());
    }
    std::fs::write(&file, text).expect("the temporary directory is writable");
    TlsProcess::start(Command::new("redis-server").arg(&file).arg("--sentinel"))
}

async fn assert_waiter_is_served(store: &Store) {
    let held = store.lock("x").acquire().await.expect("it is free");
    let other = store.as_another_process();
    let waiter = crate::store::spawn(other.lock("x").wait(20 * SECOND).acquire());
    tokio::task::yield_now().await;
    assert_eq!(held.release().await, ReleaseStatus::Released);
    let served = waiter.await.expect("no panic").expect("it is served");
    assert_eq!(served.release().await, ReleaseStatus::Released);
}

fn with_ca_certificate(
    builder: StoreBuilder,
    certificates: &TestCertificates,
    authority: &str,
) -> StoreBuilder {
    builder.call_timeout(5 * SECOND).ca_certificate(certificates.read_file(authority))
}

#[tokio::test]
async fn sentinels_and_named_master_use_tls() {
    if server_lacks_tls() {
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = TestCertificates::generate();
    let [master_port, replica_port, sentinel_port] = [free_port(), free_port(), free_port()];
    let _master = start_tls_server(&certificates, master_port, None);
    let _replica = start_tls_server(&certificates, replica_port, Some(master_port));
    let _sentinel = start_tls_sentinel(&certificates, sentinel_port, master_port);
    let url = format!("rediss+sentinel://127.0.0.1:{sentinel_port}/mymaster?ns=test");
    let builder = |authority| with_ca_certificate(Store::builder(&url), &certificates, authority);
    let store = builder("ca.crt").connect().await.expect("the settings are right");
    wait_until_usable(&store).await;
    assert_waiter_is_served(&store).await;
    // A sentinel with an untrusted certificate is rejected.
    let text = config_error_text(builder("other.crt")).await;
    assert!(text.contains("is not trusted"), "{text}");
    // Replication uses TLS, too.
    let granted = async { while store.lock("y").min_replicas(1).acquire().await.is_err() {} };
    tokio::time::timeout(40 * SECOND, granted).await.expect("the replica follows by TLS");
}

#[tokio::test]
async fn all_cluster_nodes_use_tls() {
    if server_lacks_tls() {
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = TestCertificates::generate();
    let mut args = certificates.server_arguments();
    args.extend(["--tls-auth-clients", "no", "--tls-cluster", "yes"].map(str::to_owned));
    let cluster = TestCluster::start_with_args(3, false, Duration::from_secs(30), &args).await;
    let url = cluster.tls_url("tls");
    let builder = |authority| with_ca_certificate(Store::builder(&url), &certificates, authority);
    let store = builder("ca.crt").connect().await.expect("the settings are right");
    wait_until_usable(&store).await;
    // On each of the nodes, wake-ups included.
    for key in super::super::cluster::keys_in_distinct_shards(16) {
        let held = store.lock(key.clone()).acquire().await.expect("it is free");
        let other = store.as_another_process();
        let waiter = crate::store::spawn(other.lock(key).wait(20 * SECOND).acquire());
        tokio::task::yield_now().await;
        assert_eq!(held.release().await, ReleaseStatus::Released);
        waiter.await.expect("no panic").expect("it is served").release().await;
    }
    // A redirect leads to the TLS port, too.
    let key = super::super::cluster::keys_in_distinct_shards(1).remove(0);
    let slot = cluster.slot_of_shard(key.shard()).await;
    let source = cluster.slot_owner(slot).await;
    let target = (source + 1) % 3;
    cluster.begin_slot_migration(slot, source, target).await;
    cluster.finish_slot_migration(slot, source, target).await;
    let guard = store.lock(key).acquire().await.expect("it is found where it is");
    assert_eq!(guard.release().await, ReleaseStatus::Released);
    let text = config_error_text(builder("other.crt")).await;
    assert!(text.contains("is not trusted"), "{text}");
}
