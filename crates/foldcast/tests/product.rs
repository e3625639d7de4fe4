//! R4 in the Rust face: a product's limits hold in every call, and the next call works.

use foldcast::{
    Buffers, CallOptions, Communicator, Config, DataType, Error, InitOptions, OwnedBuffers, Product, Reduction,
};

/// A world of one that the environment of the test cannot disturb.
fn alone(product: Product) -> Communicator {
    let config = Config { product, ..Config::from_env().expect("a clean environment") };
    Communicator::with_config(config, InitOptions::default()).expect("a world of one")
}

struct Owned(Vec<u8>);

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::InPlace(&mut self.0)
    }
}

#[test]
fn r4_every_call_is_held_to_the_product() {
    let communicator = alone(Product::Host);
    let world = communicator.world();
    let options = [CallOptions::default(), CallOptions { name: Some("named"), ..CallOptions::default() }];
    for product in Product::ALL {
        communicator.set_product(product);
        assert_eq!(communicator.product(), product);
        for dtype in DataType::ALL {
            for reduction in Reduction::ALL {
                let expected = product.check(dtype, reduction, false);
                for options in &options {
                    let found = world.all_reduce(dtype, reduction, Buffers::InPlace(&mut [0; 16]), options);
                    let done = Box::new(|result: foldcast::Result<()>, _| result.expect("the call was accepted"));
                    let buffers = Box::new(Owned(vec![0; 16]));
                    let submitted = world.all_reduce_async(dtype, reduction, buffers, options, done);
                    assert_eq!(found, submitted);
                    match (&expected, found) {
                        (Ok(()), Ok(())) => {}
                        (Err(unsupported), Err(Error::InvalidArgument(error))) => {
                            assert_eq!(error.field, unsupported.field());
                            assert_eq!((&error.expected, &error.got), (&unsupported.expected(), &unsupported.got()));
                            assert!(error.to_string().starts_with("rank 0: allreduce"), "{error}");
                        }
                        (expected, found) => panic!("{product} {dtype} {reduction}: {expected:?}, {found:?}"),
                    }
                }
            }
        }
        world.barrier(&CallOptions::default()).expect("a barrier is no allreduce");
    }
}

#[test]
fn r4_lists_are_held_to_the_product() {
    let communicator = alone(Product::AtlasA2);
    let world = communicator.world();
    let options = CallOptions::default();
    let (mut one, mut other) = ([0; 16], [0; 8]);
    let mut many = |dtype, reduction, members: usize| {
        let mut buffers = [Buffers::InPlace(&mut one), Buffers::InPlace(&mut other)];
        world.all_reduce_many(dtype, reduction, &mut buffers[..members], &options)
    };
    for members in 0..=2 {
        assert_eq!(many(DataType::Int16, Reduction::Sum, members), Ok(()));
        let error = many(DataType::Int16, Reduction::Prod, members).expect_err("a2 has no product of int16");
        assert!(matches!(&error, Error::InvalidArgument(e) if e.expected.contains("atlas-a2")), "{error}");
        let error = many(DataType::Float64, Reduction::Sum, members).expect_err("a2 has no float64");
        assert!(error.to_string().contains("atlas-350"), "{error}");
    }
}

#[test]
fn r4_the_configuration_chooses_the_product() {
    for product in Product::ALL {
        assert_eq!(alone(product).product(), product);
    }
}
