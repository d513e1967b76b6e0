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

async fn send_command(server: &RedisServer, words: &[&str]) -> redis::Value {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut server.connection().await).await.expect("an answer")
}

/// A replica that lags is promoted: the grant that it does not have is lost, as it is said of failovers without
/// `replicas(n)`. But its holder is told, and the next one's fence is larger, so that a register that looks at
/// fences takes nothing from the one who lost it.
#[tokio::test]
async fn promoting_lagging_replica_loses_grant_but_not_fence_order() {
    let (master, replica) = (RedisServer::start().await, RedisServer::start().await);
    let proxy = FaultProxy::start(&master, "x").await;
    let store = connect_with_long_timeout(&proxy.url()).await;
    let before = acquire_lock(&store).await;
    let port = master.port().to_string();
    send_command(&replica, &["REPLICAOF", "127.0.0.1", &port]).await;
    eventually("the replica to follow", async || {
        let words = ["WAIT", "1", "100"];
        send_command(&master, &words).await == redis::Value::Int(1)
    })
    .await;
    assert_eq!(before.release().await, ReleaseStatus::Released);
    // It hears no more of its master, and so nothing of this.
    send_command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    let lost = acquire_lock(&store).await;
    // A connection from before the replica followed its master would not compare its `run_id` (README).
    let other = connect_with_long_timeout(&replica.url("x")).await;
    proxy.redirect_to(&replica);
    let turned = Instant::now();
    let next = acquire_lock(&other).await;
    assert!(next.fence() > lost.fence(), "{} after {}", next.fence(), lost.fence());
    with_timeout("the holder to be told", lost.lost()).await;
    let told = turned.elapsed();
    println!("figure: told of the loss after {} ms", told.as_millis());
    assert!(told <= HOLD_LEASE + Duration::from_secs(5), "{told:?}");
    assert_eq!(lost.release().await, ReleaseStatus::AlreadyLost);
    assert_eq!(next.release().await, ReleaseStatus::Released);
}

/// While it loads, nothing runs there; calls are refused at once, none waits for it, and it is taken back when it
/// is ready, with all that it had.
#[tokio::test]
async fn loading_server_is_unavailable_until_loaded() {
    // Half a ms each; it answers in between, once for a thousand of them.
    let slowly = ["--key-load-delay", "500", "--aof-use-rdb-preamble", "no"];
    let mut server = RedisServer::start_with_append_log_and_args("everysec", &slowly).await;
    let store = Store::connect(&server.url("x")).await.expect("the URL is right");
    let first = acquire_lock(&connect_with_long_timeout(&server.url("x")).await).await;
    let fence = first.fence();
    assert_eq!(first.release().await, ReleaseStatus::Released);
    let mut many = redis::pipe();
    for n in 0..14_000 {
        many.cmd("SET").arg(format!("filler:{n}")).arg(n).ignore();
    }
    let mut connection = server.connection().await;
    let () = many.query_async(&mut connection).await.expect("an answer");
    server.kill();
    server.restart_until_reachable().await;
    let (mut refused, mut longest, began) = (0, Duration::ZERO, Instant::now());
    let guard = loop {
        let asked = Instant::now();
        match store.lock("x").acquire().await {
            Ok(guard) => break guard,
            Err(AcquireError::Fault(error)) => {
                let kinds = [ErrorKind::Unavailable, ErrorKind::Timeout];
                assert!(kinds.contains(&error.kind()), "{error}");
                refused += 1;
            }
            Err(busy) => panic!("{busy}"),
        }
        longest = longest.max(asked.elapsed());
        assert!(began.elapsed() < Duration::from_secs(20), "it is not taken back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    println!("figure: longest refused call {} ms", longest.as_millis());
    assert!(refused > 0, "it was there at once");
    assert!(guard.fence() > fence);
    // The deadline of a call is 250 ms; the rest is a machine that has other things to do.
    assert!(longest < Duration::from_secs(5), "{longest:?}");
}

/// Its holder finds out with its next renewal, as with any lock that has vanished.
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
    let gone = with_timeout("the lock to be evicted", async {
        for n in 0_u64.. {
            let mut some = redis::pipe();
            for of in 0..50 {
                some.cmd("SET").arg(format!("filler:{n}:{of}")).arg(&filler).ignore();
            }
            let () = some.query_async(&mut connection).await.expect("an answer");
            let keys: Vec<String> =
                redis::cmd("KEYS").arg("lg:1:x:*}:h:*").query_async(&mut connection).await.unwrap();
            if keys.is_empty() {
                return Instant::now();
            }
        }
        unreachable!()
    })
    .await;
    with_timeout("the holder to be told", guard.lost()).await;
    let told = gone.elapsed();
    println!("figure: told of the eviction after {} ms", told.as_millis());
    assert!(told <= HOLD_LEASE + Duration::from_secs(5), "{told:?}");
    send_command(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    // Also the shard's mark may be gone: the fence is ahead by the server's clock.
    let next = acquire_lock(&store).await;
    assert!(next.fence() > fence);
}
