<?xml version="1.0" encoding="UTF-8"?>
<!-- Leading mean speeds in km/h, in the classes and colours of the dashboard. -->
<StyledLayerDescriptor version="1.0.0" xmlns="http://www.opengis.net/sld" xmlns:ogc="http://www.opengis.net/ogc">
  <NamedLayer>
    <Name>hexagons</Name>
    <UserStyle>
      <FeatureTypeStyle>
        <Rule>
          <Title>0–10 km/h</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>0</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>10</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#440154</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>10–15 km/h</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>10</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>15</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#482878</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>15–20 km/h</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>15</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>20</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#31688e</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>20–25 km/h</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>20</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>25</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#26828e</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>25–30 km/h</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>25</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>30</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#1f9e89</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>30–40 km/h</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>30</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>40</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#35b779</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>40–50 km/h</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>40</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>50</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#b5de2b</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>≥ 50 km/h</Title>
          <ogc:Filter>
          <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>estimate_mean</ogc:PropertyName><ogc:Literal>50</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#fde725</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>fainter: the 95 % interval is 16 km/h wide or more</Title>
          <ogc:Filter>
          <ogc:PropertyIsGreaterThanOrEqualTo><ogc:Sub><ogc:PropertyName>estimate_mean_high</ogc:PropertyName><ogc:PropertyName>estimate_mean_low</ogc:PropertyName></ogc:Sub><ogc:Literal>16</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#ffffff</CssParameter>
            <CssParameter name="fill-opacity">0.5</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
      </FeatureTypeStyle>
    </UserStyle>
  </NamedLayer>
</StyledLayerDescriptor>
