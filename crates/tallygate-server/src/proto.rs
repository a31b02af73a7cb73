//! Envoy's rate limit service, version 3: messages, server and client. Generated from `proto/` by `cargo xtask proto`.

/// For reflection: the protocol's files, and those of protobuf they import.
pub const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");

// Modules stand where the packages stand: the generated code finds its neighbours by `super`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3;
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3;
            }
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3;
        }
    }
    pub mod r#type {
        pub mod v3;
    }
}

#[cfg(test)]
mod tests {
    //! The bytes are spelled out from Envoy's definitions, so that a wrong number or type in ours cannot hide in both.

    use std::collections::BTreeMap;
    use std::fmt::Debug;

    use prost::Message;
    use prost_types::value::Kind;
    use prost_types::{Duration, FileDescriptorSet, Struct, Timestamp, Value};

    use super::DESCRIPTORS;
    use super::envoy::config::core::v3::HeaderValue;
    use super::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use super::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
    use super::envoy::service::ratelimit::v3::rate_limit_response::quota::ExpirationSpecifier;
    use super::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
    use super::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, Quota, RateLimit};
    use super::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_service_server};
    use super::envoy::r#type::v3::RateLimitUnit;

    /// Both ways: reading alone would pass over a field it does not know.
    #[track_caller]
    fn same<M: Message + Default + PartialEq + Debug>(message: &M, bytes: &[u8]) {
        assert_eq!(&M::decode(bytes).expect("the bytes are well formed"), message);
        assert_eq!(message.encode_to_vec(), bytes);
    }

    fn descriptor() -> RateLimitDescriptor {
        let entry = Entry { key: "k".to_owned(), value: "v".to_owned() };
        RateLimitDescriptor { entries: vec![entry], ..Default::default() }
    }

    #[test]
    fn no_units_of_its_own_differs_from_zero_units() {
        same(&descriptor(), b"\x0a\x06\x0a\x01k\x12\x01v");
        same(&RateLimitDescriptor { hits_addend: Some(0), ..descriptor() }, b"\x0a\x06\x0a\x01k\x12\x01v\x1a\x00");
    }

    #[test]
    fn units_have_64_bits() {
        let bytes = b"\x0a\x06\x0a\x01k\x12\x01v\x1a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        same(&RateLimitDescriptor { hits_addend: Some(u64::MAX), ..descriptor() }, bytes);
    }

    #[test]
    fn units_given_back() {
        let given_back = RateLimitDescriptor { hits_addend: Some(3), is_negative_hits: true, ..descriptor() };
        same(&given_back, b"\x0a\x06\x0a\x01k\x12\x01v\x1a\x02\x08\x03\x20\x01");
    }

    #[test]
    fn a_limit_brought_along() {
        for (unit, number) in [
            (RateLimitUnit::Second, 1),
            (RateLimitUnit::Minute, 2),
            (RateLimitUnit::Hour, 3),
            (RateLimitUnit::Day, 4),
            (RateLimitUnit::Month, 5),
            (RateLimitUnit::Year, 6),
        ] {
            let limit = RateLimitOverride { requests_per_unit: 300, unit: unit.into() };
            let mut bytes = b"\x0a\x06\x0a\x01k\x12\x01v\x12\x05\x08\xac\x02\x10".to_vec();
            bytes.push(number);
            same(&RateLimitDescriptor { limit: Some(limit), ..descriptor() }, &bytes);
        }
        assert!(RateLimitUnit::try_from(7).is_err(), "a week comes in answers only");
    }

    #[test]
    fn a_request() {
        let request = RateLimitRequest { domain: "edge".to_owned(), descriptors: vec![descriptor()], hits_addend: 5 };
        same(&request, b"\x0a\x04edge\x12\x08\x0a\x06\x0a\x01k\x12\x01v\x18\x05");
    }

    #[test]
    fn a_status() {
        for (unit, number) in [
            (Unit::Second, 1),
            (Unit::Minute, 2),
            (Unit::Hour, 3),
            (Unit::Day, 4),
            (Unit::Month, 5),
            (Unit::Year, 6),
            (Unit::Week, 7),
        ] {
            let limit = RateLimit { requests_per_unit: 10, unit: unit.into(), name: "n".to_owned() };
            same(&limit, &[b"\x08\x0a\x10".as_slice(), &[number], b"\x1a\x01n"].concat());
        }
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit::default()),
            limit_remaining: u32::MAX,
            duration_until_reset: Some(Duration { seconds: 2, nanos: 1 }),
            quota: Some(Quota {
                requests: 4,
                expiration_specifier: Some(ExpirationSpecifier::ValidUntil(Timestamp { seconds: 9, nanos: 0 })),
                id: "q".to_owned(),
            }),
        };
        let bytes = b"\x08\x01\x12\x00\x18\xff\xff\xff\xff\x0f\x22\x04\x08\x02\x10\x01\x2a\x09\x08\x04\x12\x02\x08\x09\x1a\x01q";
        same(&status, bytes);
    }

    #[test]
    fn an_answer() {
        let header = |key: &str| HeaderValue { key: key.to_owned(), value: "v".to_owned(), raw_value: vec![0xff] };
        let yes = Value { kind: Some(Kind::BoolValue(true)) };
        let answer = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![DescriptorStatus { code: Code::OverLimit.into(), ..Default::default() }],
            response_headers_to_add: vec![header("a")],
            request_headers_to_add: vec![header("b")],
            raw_body: b"no".to_vec(),
            dynamic_metadata: Some(Struct { fields: BTreeMap::from([("m".to_owned(), yes)]) }),
            quota: Some(Quota { requests: 1, ..Default::default() }),
        };
        let bytes = [
            b"\x08\x02".as_slice(),
            b"\x12\x02\x08\x02",
            b"\x1a\x09\x0a\x01a\x12\x01v\x1a\x01\xff",
            b"\x22\x09\x0a\x01b\x12\x01v\x1a\x01\xff",
            b"\x2a\x02no",
            b"\x32\x09\x0a\x07\x0a\x01m\x12\x02\x20\x01",
            b"\x3a\x02\x08\x01",
        ];
        same(&answer, &bytes.concat());
    }

    #[test]
    fn descriptors_name_the_service_and_hold_every_import() {
        let set = FileDescriptorSet::decode(DESCRIPTORS).expect("it is what the generator wrote");
        let names: Vec<&str> = set.file.iter().map(|file| file.name()).collect();
        for file in &set.file {
            for import in &file.dependency {
                assert!(names.contains(&import.as_str()), "{} imports {import}", file.name());
            }
        }
        let services = set
            .file
            .iter()
            .flat_map(|file| file.service.iter().map(move |service| format!("{}.{}", file.package(), service.name())));
        assert_eq!(services.collect::<Vec<_>>(), [rate_limit_service_server::SERVICE_NAME]);
    }
}
