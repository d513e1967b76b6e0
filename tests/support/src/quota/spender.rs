//! A process that spends what is left of a quota, beside others that do.

use std::{io::BufRead as _, time::Duration};

use lockgate::{Policy, Quota, Store};

/// At once in each process.
const TASKS: usize = 16;

/// A task has seen the end of a quota when it was refused so often in a row.
const ENOUGH: usize = 3;

/// What all of them spend: far longer than any test, so nothing comes back meanwhile.
fn policies(limit: u64) -> [Policy; 4] {
    let quota = || Quota::requests(limit).per(Duration::from_secs(86_400 * 30));
    [
        Policy::new(quota()).name("fixed"),
        Policy::new(quota().sliding()).name("sliding"),
        // Where one comes back every 2592 s / limit at most: none within a test.
        Policy::new(quota().burst(limit.div_ceil(2))).name("paced"),
        Policy::new(quota()).name("leased").lease(7),
    ]
}

/// How many each of the policies of [`spender`] lets in altogether, by name.
#[must_use]
pub fn spent(limit: u64) -> [(&'static str, u64); 4] {
    [("fixed", limit), ("sliding", limit), ("paced", limit.div_ceil(2)), ("leased", limit)]
}

/// Says `ready`, waits for a line, spends what is there, and says for each policy how many it was let in.
///
/// # Panics
///
/// If the URL is wrong, or the store does not answer for ten seconds.
pub async fn spender(url: &str, limit: u64) {
    // A loaded machine is no outage here: what is decided locally would be another quota.
    let builder = Store::builder(url).deadline(Duration::from_secs(10));
    let store = builder.connect().await.expect("the URL is right");
    for policy in policies(limit) {
        // The connection is there when it begins.
        store.rate_limit(policy).peek("hot", 1).await.expect("the store answers");
    }
    println!("ready");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("it is told to go");
    for policy in policies(limit) {
        let limit = store.rate_limit(policy.clone());
        let tasks = (0..TASKS).map(|_| {
            let limit = limit.clone();
            tokio::spawn(async move {
                let (mut passed, mut refused) = (0, 0);
                while refused < ENOUGH {
                    let decision = limit.check("hot", 1).await.expect("the store answers");
                    assert!(!decision.is_local(), "the store answers");
                    passed += u64::from(decision.is_admitted());
                    refused = if decision.is_admitted() { 0 } else { refused + 1 };
                }
                passed
            })
        });
        let mut passed = 0;
        for task in tasks.collect::<Vec<_>>() {
            passed += task.await.expect("no task panics");
        }
        println!("{} {passed}", policy.label());
    }
    // Gives back what it has leased and not spent.
    store.shutdown(Duration::from_secs(10)).await;
    println!("done");
}
