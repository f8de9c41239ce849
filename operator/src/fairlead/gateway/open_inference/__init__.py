"""The Open Inference Protocol (v2) over gRPC, with text in and out: each request becomes a completion of OpenAI's API,
and the gateway's application serves the completion as if the client had sent HTTP. Imported by gateways with
`grpc_port` alone."""
