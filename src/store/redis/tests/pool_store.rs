//! Store on a connection pool of the application.

use std::time::Duration;

use bb8_redis::RedisConnectionManager;

use super::{
    RELEASE_LIMIT, SECOND, acquire_with_retries,
    lossy_proxy::{LossyProxy, RedirectProxy},
    server_process::ServerProcess,
    wait_for_lock_subscriber, wait_for_queue_length, wait_until, wait_until_usable,
};
use crate::{
    admin::{Operator, Permission},
    error::ErrorKind,
    lock::{AcquireError, ReleaseStatus},
    rate_limit::PolicyChange,
    store::Store,
};

type RedisPool = bb8::Pool<RedisConnectionManager>;

async fn connect_pool(server: &ServerProcess, size: u32) -> RedisPool {
    connect_pool_to_url(&format!("redis://127.0.0.1:{}/", server.port()), size).await
}

async fn connect_pool_to_url(url: &str, size: u32) -> RedisPool {
    let manager = RedisConnectionManager::new(url).expect("an address");
    bb8::Pool::builder().max_size(size).build(manager).await.expect("it runs")
}

async fn store_on_pool(pool: &RedisPool) -> Store {
    let builder = Store::from_pool(pool.clone()).namespace("test").call_timeout(5 * SECOND);
    builder.connect().await.expect("the settings are right")
}

#[tokio::test]
async fn connections_return_to_pool_after_shutdown() {
    let server = ServerProcess::start().await;
    let pool = connect_pool(&server, 4).await;
    let store = store_on_pool(&pool).await;
    for n in 0..20 {
        let guard = store.lock(n.to_string()).acquire().await.expect("it is free");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
    }
    let state = pool.state();
    assert_eq!(state.connections - state.idle_connections, 2, "{state:?}");
    assert!(store.shutdown(RELEASE_LIMIT).await);
    drop(store);
    wait_until("all to be back in the pool", async || {
        pool.state().connections == pool.state().idle_connections
    })
    .await;
}

/// As in tests that share a store, each on a runtime of its own.
#[test]
fn charge_on_new_runtime_after_pool_runtime_ended_is_stored() {
    let one_thread =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (server, store) = one_thread().block_on(async {
        let server = ServerProcess::start().await;
        let store = store_on_pool(&connect_pool(&server, 4).await).await;
        drop(store.lock("warm").acquire().await.expect("it is free"));
        (server, store)
    });
    let limit = store.rate_limiter(crate::Quota::requests(9).per(60 * SECOND));
    for remaining in [8, 7, 6] {
        let decision = one_thread().block_on(limit.check("k", 1)).expect("it is there");
        assert!(!decision.is_local(), "decided without the store: {decision:?}");
        assert_eq!(decision.remaining(), remaining);
    }
    drop(server);
}

#[tokio::test]
async fn waiter_is_served_with_and_without_pubsub() {
    let server = ServerProcess::start().await;
    let pool = connect_pool(&server, 8).await;
    let polling_store = store_on_pool(&pool).await;
    let builder = Store::from_pool(pool.clone()).namespace("test").pubsub_url(&server.url());
    let subscribed_store = builder.connect().await.expect("the settings are right");
    for (store, is_subscribed) in [(polling_store, false), (subscribed_store, true)] {
        let held = store.lock("x").acquire().await.expect("it is free");
        let other = store.as_another_process();
        let waiter = crate::store::spawn(other.lock("x").wait(20 * SECOND).acquire());
        wait_for_queue_length(&store, 1).await;
        if is_subscribed {
            wait_for_lock_subscriber(&server).await;
        }
        assert_eq!(held.release().await, ReleaseStatus::Released);
        let guard = waiter.await.expect("no panic").expect("it is served");
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        let subscribers: String = server.query(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        assert_eq!(subscribers.lines().count() > 0, is_subscribed, "{subscribers}");
    }
}

#[tokio::test]
async fn restarted_server_is_used_again() {
    let mut server = ServerProcess::start().await;
    let pool = connect_pool(&server, 4).await;
    let store = store_on_pool(&pool).await;
    server.kill();
    match store.lock("x").acquire().await {
        Err(AcquireError::Fault(error)) => assert_ne!(error.kind(), ErrorKind::Config),
        other => panic!("{other:?}"),
    }
    server.restart().await;
    wait_until_usable(&store).await;
    drop(store.lock("y").acquire().await.expect("it is free"));
}

/// The proxy leads to the successor. The pool's connections do not.
#[tokio::test]
async fn demoted_master_is_left_although_pool_keeps_it() {
    let (master, successor) = (ServerProcess::start().await, ServerProcess::start().await);
    let proxy = RedirectProxy::to(master.port()).await;
    let manager = RedisConnectionManager::new(format!("redis://127.0.0.1:{}/", proxy.port()));
    let pool = bb8::Pool::builder().max_size(4).build(manager.expect("an address")).await;
    let store = store_on_pool(&pool.expect("it runs")).await;
    drop(store.lock("x").acquire().await.expect("it is free"));
    proxy.set_target(successor.port());
    master.command(&["REPLICAOF", "127.0.0.1", &successor.port().to_string()]).await;
    wait_until_usable(&store).await;
    drop(store.lock("y").acquire().await.expect("it is free"));
    assert!(successor.count_script_calls().await > 0);
}

/// The default limit of the client library is half a second.
#[tokio::test]
async fn reply_is_awaited_until_call_timeout() {
    let server = ServerProcess::start().await;
    let store = store_on_pool(&connect_pool(&server, 4).await).await;
    drop(store.lock("warm").acquire().await.expect("it is free"));
    server.freeze();
    let resume = async {
        tokio::time::sleep(SECOND).await;
        server.resume();
    };
    let (acquired, ()) = tokio::join!(store.lock("x").acquire(), resume);
    drop(acquired.expect("it is free"));
}

/// With a deadline below and above the client library's own limit.
#[tokio::test]
async fn half_open_connections_do_not_return_to_pool() {
    let server = ServerProcess::start().await;
    for deadline in [250, 700].map(Duration::from_millis) {
        let proxy = LossyProxy::to(server.port()).await;
        let pool = connect_pool_to_url(&proxy.url(), 4).await;
        // Idle connections are half open, too.
        let all = [pool.get().await, pool.get().await, pool.get().await, pool.get().await];
        assert!(all.iter().all(Result::is_ok));
        drop(all);
        let builder = Store::from_pool(pool).namespace("test").call_timeout(deadline);
        let store = builder.connect().await.expect("the settings are right");
        drop(acquire_with_retries(&store.lock(format!("before {deadline:?}"))).await);
        proxy.forget_connections();
        wait_until_usable(&store).await;
        drop(acquire_with_retries(&store.lock(format!("after {deadline:?}"))).await);
    }
}

#[tokio::test]
async fn settings_of_pool_are_rejected_by_builder() {
    let server = ServerProcess::start().await;
    let pool = connect_pool(&server, 4).await;
    let builder = || Store::from_pool(pool.clone()).namespace("test");
    for invalid in [builder().login("me", "pw"), builder().database(1), builder().pubsub_url("x")] {
        let error = invalid.connect().await.expect_err("it is no good");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
}

/// A process with messages reads much less often than this waits.
#[tokio::test]
async fn changed_policies_are_followed_without_pubsub() {
    let server = ServerProcess::start().await;
    let store = store_on_pool(&connect_pool(&server, 4).await).await;
    let per_hour = |limit| crate::Quota::requests(limit).per(3600 * SECOND);
    let limiter = store.rate_limiter(crate::Policy::new(per_hour(2)).with_name("search"));
    let applied_limit = async || {
        let decision = limiter.check("7", 0).await.expect("it is there");
        decision.policies()[0].policy().quota().limit()
    };
    let admin = store.admin(Operator::new("ada", Permission::Act));
    // The second change comes after the first read.
    for limit in [3, 4] {
        let change = PolicyChange::new().quota(per_hour(limit));
        admin.set_policy("search", change, "a test").await.expect("it is there");
        wait_until("the process to follow", async || applied_limit().await == limit).await;
    }
}
