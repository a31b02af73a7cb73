//! Lists of open holds.

use super::*;
use crate::support::served::bearer;

/// The subjects in a list are nobody else's business, and what is in it settles nothing.
#[test]
fn open_holds_are_listed_for_operators_and_without_their_tokens() {
    on_both(|server| {
        let token = reserved(server, &llm("list", json!({"units": {"tokens": 900}, "ttl_ms": 50_000})));
        let second = reserved(server, &llm("else", json!({"units": {"tokens": 7}})));
        let list = |query: &str, headers: &[(&str, &str)]| {
            request(server.http, "GET", &format!("/v1/holds{query}"), headers, b"")
        };
        let refused = list("", &[]);
        assert_eq!((refused.status, body(&refused)["code"].clone()), (401, json!("unauthorized")));
        let all = list("", &[bearer()]);
        assert_eq!(all.status, 200, "{}", all.text());
        let said = body(&all);
        assert!(!all.text().contains(&token[2..34]) && !all.text().contains(&second[2..34]), "no token, no id");
        let holds = said["holds"].as_array().unwrap();
        assert_eq!((holds.len(), said.get("cursor")), (2, None));
        let held = |policy: &str, subject: &str, held: u64| json!({"policy": policy, "subject": subject, "held": held});
        assert_eq!(
            holds[0]["policies"],
            json!([held("llm/requests", "user=list", 1), held("llm/tokens", "user=list", 900)])
        );
        let number = |name: &str| holds[0][name].as_u64().unwrap();
        assert!(number("expires_at_ms").abs_diff(number("reserved_at_ms") + 50_000) < 2, "each is rounded");
        assert!(number("age_ms") + number("expires_after_ms") >= 49_999);
        let of = |query: &str| body(&list(query, &[bearer()]));
        let one = of("?policy=llm/tokens&subject=user%3Delse");
        assert_eq!(one["holds"][0]["policies"], json!([held("llm/tokens", "user=else", 7)]));
        assert_eq!(of("?older_than_ms=3600000")["holds"], json!([]));
        let first = of("?limit=1");
        let rest = first["cursor"].as_str().map(|cursor| of(&format!("?cursor={cursor}")));
        let count = |page: &Value| page["holds"].as_array().unwrap().len();
        assert_eq!(count(&first) + rest.as_ref().map_or(0, count), 2);
        for query in ["?limit=0", "?cursor=x", "?polcy=a"] {
            assert_eq!(of(query)["code"], "invalid_parameter", "{query}");
        }
        assert_eq!(ended(server, "cancel", json!({"hold": token}), ["state"]), (200, [json!("cancelled")]));
        assert_eq!(count(&of("")), 1);
    });
}
