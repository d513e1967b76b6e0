//! Faults of a single Redis server: it lags, loads its data, and evicts keys.

use std::time::{Duration, Instant};

use lockgate::{AcquireError, ErrorKind, LockGuard, ReleaseStatus, Store};
use lockgate_tests::{RedisServer, eventually, proxy::FaultProxy, with_timeout};

const HOLD_LEASE: Duration = Duration::from_secs(6);

async fn connect_with_long_timeout(url: &str) -> Store {
    let builder = Store::builder(url).call_timeout(Duration::from_secs(5));
    builder.connect().await.expect("the URL is right")
}

async fn acquire_lock(store: &Store) -> LockGuard {
    let request = store.lock("x").lease(HOLD_LEASE).wait(Duration::from_secs(20));
    request.acquire().await.expect("the lock")
}

async fn send_command(server: &RedisServer, arguments: &[&str]) -> redis::Value {
    let mut command = redis::cmd(arguments[0]);
    command.arg(&arguments[1..]);
    command.query_async(&mut server.connection().await).await.expect("an answer")
}

/// A lagging replica is promoted and the grant that it lacks is lost, as documented for failovers
/// without `replicas(n)`. The holder detects the loss, and the next fence is larger, so a register
/// that checks fences rejects the old holder's writes.
#[tokio::test]
async fn promoting_lagging_replica_loses_grant_but_not_fence_order() {
    let (master, replica) = (RedisServer::start().await, RedisServer::start().await);
    let proxy = FaultProxy::start(&master, "x").await;
    let store = connect_with_long_timeout(&proxy.url()).await;
    let before = acquire_lock(&store).await;
    let port = master.port().to_string();
    send_command(&replica, &["REPLICAOF", "127.0.0.1", &port]).await;
    eventually("the replica to follow", async || {
        let command = ["WAIT", "1", "100"];
        send_command(&master, &command).await == redis::Value::Int(1)
    })
    .await;
    assert_eq!(before.release().await, ReleaseStatus::Released);
    // The replica stops replicating and misses the next grant.
    send_command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    let lost = acquire_lock(&store).await;
    // A connection opened before the replication would not compare its `run_id` (README).
    let other = connect_with_long_timeout(&replica.url("x")).await;
    proxy.redirect_to(&replica);
    let redirected = Instant::now();
    let next = acquire_lock(&other).await;
    assert!(next.fence() > lost.fence(), "{} after {}", next.fence(), lost.fence());
    with_timeout("the loss to be reported", lost.lost()).await;
    let detection_time = redirected.elapsed();
    println!("figure: loss reported after {} ms", detection_time.as_millis());
    assert!(detection_time <= HOLD_LEASE + Duration::from_secs(5), "{detection_time:?}");
    assert_eq!(lost.release().await, ReleaseStatus::AlreadyLost);
    assert_eq!(next.release().await, ReleaseStatus::Released);
}

/// While the server loads its data, calls are refused at once without waiting. It is used again
/// when it is ready, with all its data.
#[tokio::test]
async fn loading_server_is_unavailable_until_loaded() {
    // Half a ms per key; the server answers between batches of a thousand keys.
    let slow_loading = ["--key-load-delay", "500", "--aof-use-rdb-preamble", "no"];
    let mut server = RedisServer::start_with_append_log_and_args("everysec", &slow_loading).await;
    let store = Store::connect(&server.url("x")).await.expect("the URL is right");
    let first = acquire_lock(&connect_with_long_timeout(&server.url("x")).await).await;
    let fence = first.fence();
    assert_eq!(first.release().await, ReleaseStatus::Released);
    let mut fillers = redis::pipe();
    for n in 0..14_000 {
        fillers.cmd("SET").arg(format!("filler:{n}")).arg(n).ignore();
    }
    let mut connection = server.connection().await;
    let () = fillers.query_async(&mut connection).await.expect("an answer");
    server.kill();
    server.restart_until_reachable().await;
    let (mut refused, mut longest_refusal, started) = (0, Duration::ZERO, Instant::now());
    let guard = loop {
        let call_start = Instant::now();
        match store.lock("x").acquire().await {
            Ok(guard) => break guard,
            Err(AcquireError::Fault(error)) => {
                let kinds = [ErrorKind::Unavailable, ErrorKind::Timeout];
                assert!(kinds.contains(&error.kind()), "{error}");
                refused += 1;
            }
            Err(busy) => panic!("{busy}"),
        }
        longest_refusal = longest_refusal.max(call_start.elapsed());
        assert!(started.elapsed() < Duration::from_secs(20), "the store does not recover");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    println!("figure: longest refused call {} ms", longest_refusal.as_millis());
    assert!(refused > 0, "it was there at once");
    assert!(guard.fence() > fence);
    // The call timeout is 250 ms; the rest allows for a loaded machine.
    assert!(longest_refusal < Duration::from_secs(5), "{longest_refusal:?}");
}

/// The next renewal detects the loss, as with any deleted lock.
#[tokio::test]
async fn holder_learns_of_evicted_lock_at_next_renewal() {
    let server = RedisServer::start().await;
    let store = connect_with_long_timeout(&server.url("x")).await;
    let guard = acquire_lock(&store).await;
    let fence = guard.fence();
    send_command(&server, &["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]).await;
    send_command(&server, &["CONFIG", "SET", "maxmemory", "3mb"]).await;
    let filler = "x".repeat(20_000);
    let mut connection = server.connection().await;
    let evicted = with_timeout("the lock to be evicted", async {
        for n in 0_u64.. {
            let mut fillers = redis::pipe();
            for i in 0..50 {
                fillers.cmd("SET").arg(format!("filler:{n}:{i}")).arg(&filler).ignore();
            }
            let () = fillers.query_async(&mut connection).await.expect("an answer");
            let keys: Vec<String> =
                redis::cmd("KEYS").arg("lg:1:x:*}:h:*").query_async(&mut connection).await.unwrap();
            if keys.is_empty() {
                return Instant::now();
            }
        }
        unreachable!()
    })
    .await;
    with_timeout("the loss to be reported", guard.lost()).await;
    let detection_time = evicted.elapsed();
    println!("figure: eviction reported after {} ms", detection_time.as_millis());
    assert!(detection_time <= HOLD_LEASE + Duration::from_secs(5), "{detection_time:?}");
    send_command(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    // The shard's fence key may be evicted too: the server clock still makes the fence larger.
    let next = acquire_lock(&store).await;
    assert!(next.fence() > fence);
}
