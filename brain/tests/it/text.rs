//! Scripts as text: `check(&mut etcd, "put a 1 | put a 2 | compact 3 | get a @2", "compacted")`.
//!
//! One request between bars. Keys are words, `\x00` any byte; `a..c` is a range, `a..` all from `a` on, `a*` a prefix.
//!
//! ```text
//! put KEY VALUE [lease=ID] [prev] [ignore-value] [ignore-lease]
//! get KEYS [@REVISION] [limit=N] [count] [keys] [by=mod|create|version|value|key] [asc|desc]
//!          [min-mod=R] [max-mod=R] [min-create=R] [max-create=R]
//! del KEYS [prev]
//! txn [mod|create|version|value|lease(KEYS) =|!=|<|> WORD, without blanks]... [? OP [; OP]... [: OP [; OP]...]]
//!     (an operation that is a txn is written between blank-separated parentheses)
//! compact REVISION | grant ID TTL | revoke ID | alive ID | ttl ID | leases
//! ```

mod parse;
mod show;

use crate::canonical::canonical;
use crate::model::Model;
use crate::wire::{Answer, Request, Target};

impl Target for Model {
    async fn call(&mut self, request: Request) -> Answer {
        self.answer(&request)
    }
}

/// Runs `script` on `target`, which must be fresh, and on the model: every answer must be the same, and the last one must
/// read `expected`.
#[track_caller]
pub(crate) fn check(target: &mut impl Target, script: &str, expected: &str) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let (mut model, mut last) = (Model::new(), String::new());
        for line in script.split('|') {
            let request = parse::request(line);
            let answer = canonical(&request, target.call(request.clone()).await);
            let right = canonical(&request, model.answer(&request));
            assert_eq!(answer, right, "{caller}: {:?}", line.trim());
            last = show::answer(&request, &answer);
        }
        assert_eq!(last, expected, "{caller}: {script}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn model(script: &str, expected: &str) {
        futures::executor::block_on(check(&mut Model::new(), script, expected));
    }

    #[test]
    fn reads_below_the_compacted_revision_are_refused() {
        model("put a 1 | put a 2 | compact 3 | get a @2", "compacted");
        model("put a 1 | put a 2 | compact 3 | get a @3", "2");
        model("put a 1 | get a @3", "future");
        model("put a 1 | compact 2 | compact 2", "compacted");
        model("compact 0 | compact 0", "compacted");
        model("compact 0 | compact 1", "@1");
        model("compact 2", "future");
    }

    #[test]
    fn only_what_changes_something_takes_a_revision() {
        model("put a 1", "@2");
        model("put a 1 | put a 1", "@3");
        model("del a", "@1 deleted 0");
        model("put a 1 | put b 1 | put c 1 | del a..c", "@5 deleted 2");
        model("txn ? put a 1 ; put b 1 | put c 1", "@3");
        model("txn version(a)=1 ? put a 1 | put c 1", "@2");
        model("put a 1 | get a..c count | put b 1", "@3");
    }

    #[test]
    fn limits_cut_after_the_order_and_before_the_default_one() {
        let puts = "put a 3 | put b 2 | put c 1 | ";
        model(&format!("{puts} get a.. by=value asc limit=2"), "1 2 of 3, more");
        model(&format!("{puts} get a.. by=value limit=2"), "1 2 of 3, more");
        model(&format!("{puts} get a.. by=value limit=1"), "2 of 3, more");
        model(&format!("{puts} get a.. desc limit=3"), "1 2 3 of 3");
        model(&format!("{puts} get a.. min-mod=3 max-mod=3"), "2 of 3");
        model(&format!("{puts} get b..a"), "nothing of 0");
        model(&format!("{puts} get a.. keys limit=1"), "a of 3, more");
    }

    #[test]
    fn compares_see_what_was_before_and_reads_what_is_now() {
        model("txn ? put a 1 ; ( txn version(a)=0 ? get a )", "@2 yes @2 ; yes 1 of 1");
        model(
            "put a 1 | txn ? put a 2 ; get a @2 ; get a",
            "@3 yes @3 ; 1 of 1 ; 2 of 1",
        );
        model("put a 1 | txn ? put a 2 ; get a @3", "future");
        model("txn value(a)!=x ? get a : put b 1", "@2 no @2");
        model("txn mod(a)=0 lease(a)=0 ? put b 1", "@2 yes @2");
        model("put a 1 | put b 1 | txn mod(a..c)>2 ? put c 1", "@3 no");
    }

    #[test]
    fn a_key_is_put_once_in_a_txn_except_in_branches_that_exclude_each_other() {
        model("txn ? put a 1 ; put a 2", "duplicate");
        model("txn ? put a 1 ; del a*", "duplicate");
        model("txn ? del a ; del a", "@1 yes @1 deleted 0 ; @1 deleted 0");
        model("txn ? ( txn ? put a 1 : put a 2 )", "@2 yes yes @2");
        model(
            "txn ? ( txn ? put a 1 ) ; ( txn ? del a )",
            "@2 yes yes @2 ; yes @2 deleted 1",
        );
        model("txn ? ( txn ? del a ) ; ( txn ? put a 1 )", "duplicate");
    }

    #[test]
    fn a_lease_takes_its_keys_with_it_and_a_put_without_one_sets_them_free() {
        model(
            "grant 7 100 | put a 1 lease=7 | put b 1 lease=7 | put b 2 | revoke 7 | get a..",
            "2 of 1",
        );
        model("grant 7 100 | put a 1 lease=7 | put b 1 lease=7 | revoke 7", "@4");
        model(
            "grant 7 100 | put a 1 lease=7 | grant 8 100 | put a 1 lease=8 | ttl 7",
            "100 s",
        );
        model(
            "grant 7 100 | put a 1 lease=7 | put a 2 ignore-lease | ttl 7 keys",
            "100 s: a",
        );
        model("put a 1 lease=7", "no lease");
        model("revoke 7", "no lease");
        model("alive 7", "0 s");
        model("ttl 7", "-1 s");
        model("grant 7 -5", "lease 7 for 2 s");
        model("grant 7 100 | grant 7 100", "lease exists");
        model("grant 7 9000000001", "lease too long");
        model("grant 7 100 | grant 6 100 | leases", "6 7");
    }

    #[test]
    fn put_options_need_what_they_refer_to() {
        model("put a 1 ignore-value", "value provided");
        model("put a  ignore-value", "no such key");
        model(
            "grant 7 100 | put a 1 lease=7 | put a x ignore-lease prev | get a*",
            "x of 1",
        );
        model("put a 1 lease=7 ignore-lease", "lease provided");
        model(r"put \x00 1 | put \xff 2 | get \x00..", "1 2 of 2");
    }
}
