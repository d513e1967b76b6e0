//! Fixed windows on a server that stands still within a script: its commands read the clock later than the script did.

use redis::RedisResult;

use super::{
    charges::{item, settled},
    server::Server,
};
use crate::{
    key::Key,
    store::{
        AdjustmentKind, ChargedWindow,
        key_names::{CounterKeyKind, KeyNames},
        rate::Algorithm,
        redis::{
            msgpack::{MsgpackReader, MsgpackValue},
            scripts::{CHARGE_BATCH, LuaScript, SETTLE_CHARGE},
        },
    },
};

/// Commands for which the clock stands within a script would wait for ever, but for the bound.
const STALL: &str = "
local turns = 0
repeat
  local later = redis.call('TIME')
  turns = turns + 1
until later[1] * 1000000 + later[2] > now_us + 20000 or turns == 1000000
";

fn stalled(script: &LuaScript) -> String {
    let now = include_str!("../../lua/server_time.lua");
    let rest = script.source.strip_prefix(now).expect("it asks for the time first");
    format!("{now}{STALL}{rest}")
}

/// By which end the window of a charge is told: of one that went alone or among others.
async fn charged(server: &Server, key: &str, args: &[&str]) -> u64 {
    let code = stalled(&CHARGE_BATCH);
    let packed: Vec<u8> = server.ask(&[&["EVAL", &code, "1", key], args].concat()).await;
    let mut words = MsgpackReader::from_array(&packed).unwrap();
    let told: Vec<_> = std::iter::from_fn(|| words.next_value()).collect();
    match *told {
        [MsgpackValue::Number(now), MsgpackValue::True, MsgpackValue::Number(1)] => {
            now / 1000 + 3_600_000
        }
        [MsgpackValue::Number(now), MsgpackValue::Number(1), _, MsgpackValue::Number(left)] => {
            now / 1000 + left
        }
        _ => panic!("{told:?}"),
    }
}

async fn put_right(server: &Server, key: &str, args: &[&str]) -> u64 {
    let code = stalled(&SETTLE_CHARGE);
    let told: Vec<u64> = server.ask(&[&["EVAL", &code, "1", key], args].concat()).await;
    told[0] / 1000 + told[2]
}

/// A refund that names another end lapses.
#[tokio::test]
async fn a_window_ends_when_it_was_told_to_however_long_the_script_takes() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    for way in ["f", "m", "charge"] {
        let subject = Key::custom(way);
        let kind = CounterKeyKind::spent_units(Algorithm::Fixed);
        let keys = KeyNames::new("test");
        let key = keys.counter_parts(&subject, subject.shard(), kind, ("p", &subject)).concat();
        let mut ends = Vec::new();
        for _ in 0..3 {
            ends.push(match way {
                "f" => charged(&server, &key, &["f", "5", "3600000", "1", "1"]).await,
                "m" => {
                    let args = ["m", "1", "1", "f", "5", "3600000", "1", "0", "0"];
                    charged(&server, &key, &args).await
                }
                _ => {
                    let args = ["charge", "0", "0", "f", "5", "3600000", "1"];
                    put_right(&server, &key, &args).await
                }
            });
        }
        let end: RedisResult<u64> = server.try_ask(&["PEXPIRETIME", &key]).await;
        // Before Redis 7.0 nobody can tell, a script neither.
        let Ok(end) = end else { return };
        assert_eq!(ends, [end; 3], "{way}");
        for (end, remaining) in ends.into_iter().zip(3..) {
            let by = AdjustmentKind::Refund {
                units: 1,
                window: ChargedWindow { boundary: end, debt_id: 0 },
            };
            let states = store.backend().settle_charge(settled(&item("p", &subject, 5, 1), by));
            assert_eq!(states.await.unwrap()[0].remaining, remaining, "{way}");
        }
    }
}
